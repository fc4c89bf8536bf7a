"""The dashboard's files: one page with its styles and scripts, as they lie here."""

from importlib.resources import files

from aiohttp import web
from aiohttp.typedefs import Handler

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def page_routes() -> list[web.RouteDef]:
    """Return a route for each file; the files are read once."""
    routes = []
    for file in files("spotlightd.web").joinpath("static").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            routes.append(web.get(path, _serve(file.read_text(encoding="utf-8"), kind)))
    return routes


def _serve(text: str, kind: str) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        # Always asked for anew: a page of another release must not meet this daemon.
        return web.Response(text=text, content_type=kind, headers={"Cache-Control": "no-cache"})

    return handle
