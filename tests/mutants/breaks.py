"""Small breaks of Python source: what the tests are tried with.

A mutant differs from its source in one place. Texts for people (f-strings, sentences, messages of
asserts and raises, docstrings), annotations, and `validate`, which only checks, are left alone:
nobody can test what does not decide anything.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.LShift: ast.RShift,
    ast.BitOr: ast.BitAnd,
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    line: int
    what: str
    """`a < b -> a <= b`, for people."""
    source: str


def mutants_of(source: str) -> list[Mutant]:
    """Return every mutant, in the order of the source."""
    tree = ast.parse(source)
    clean = ast.unparse(tree)
    found = []
    for path, node in _walk(tree, ()):
        for change in _changes(node):
            mutated = copy.deepcopy(tree)
            replacement = change(copy.deepcopy(node))
            _put(mutated, path, replacement)
            text = ast.unparse(ast.fix_missing_locations(mutated))
            if text != clean:
                what = f"{_short(node)} -> {_short(replacement)}"
                found.append(Mutant(getattr(node, "lineno", 0), what, text))
    return found


Step = tuple[str, int | None]
"""Field of a node, and the place in it where the field is a list."""


def _walk(node: ast.AST, path: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], ast.AST]]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "msg", "type_params"):
            continue
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, ast.AST) or _decides_nothing(child):
                continue
            here = (*path, (name, index if isinstance(value, list) else None))
            yield here, child
            yield from _walk(child, here)


def _decides_nothing(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.FunctionDef(name="validate"):
            return True
        case ast.Constant(value=str(text)) if " " in text:
            return True
        case ast.Expr(value=ast.Constant(value=str())):
            # A docstring, or a field's explanation.
            return True
        case ast.Assign(value=ast.Subscript(), col_offset=0):
            # The name of a type.
            return True
    return False


def _put(tree: ast.AST, path: tuple[Step, ...], replacement: ast.AST) -> None:
    for name, index in path[:-1]:
        tree = getattr(tree, name) if index is None else getattr(tree, name)[index]
    name, index = path[-1]
    if index is None:
        setattr(tree, name, replacement)
    else:
        getattr(tree, name)[index] = replacement


Change = Callable[[ast.AST], ast.AST]


def _changes(node: ast.AST) -> list[Change]:
    match node:
        case ast.Compare(ops=[operator]):
            return [_with(ops=[other()]) for other in COMPARISONS.get(type(operator), [])]
        case ast.BoolOp(op=operator):
            return [_with(op=ast.Or() if isinstance(operator, ast.And) else ast.And())]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [lambda _: operand]
        case ast.BinOp(op=operator) if type(operator) in OPERATORS:
            return [_with(op=OPERATORS[type(operator)]())]
        case ast.AugAssign(op=operator) if type(operator) in OPERATORS:
            return [_with(op=OPERATORS[type(operator)]()), _pass]
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            return [_with(func=ast.Name(FUNCTIONS[name], ast.Load()))]
        case ast.Constant(value=value):
            return _changes_of_constant(value)
        case ast.IfExp(body=body, orelse=orelse):
            return [lambda _: body, lambda _: orelse]
        case ast.If(test=test) | ast.While(test=test):
            negated = ast.UnaryOp(ast.Not(), test)
            return [] if isinstance(test, ast.Compare | ast.UnaryOp) else [_with(test=negated)]
        case ast.Return(value=value) if value is not None and not _is_none(value):
            return [_with(value=ast.Constant(None))]
        case ast.Expr() | ast.Assign() | ast.Delete() | ast.Assert():
            return [_pass]
        case ast.Continue():
            return [lambda _: ast.Break()]
        case ast.Break():
            return [lambda _: ast.Continue()]
    return []


def _changes_of_constant(value: object) -> list[Change]:
    match value:
        case bool():
            return [_with(value=not value)]
        case int() | float():
            return [_with(value=value + 1)]
        case str():
            return [_with(value=f"not {value}")]
    return []


def _with(**fields: object) -> Change:
    def change(node: ast.AST) -> ast.AST:
        for name, value in fields.items():
            setattr(node, name, value)
        return node

    return change


def _pass(_: ast.AST) -> ast.AST:
    return ast.Pass()


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _short(node: ast.AST) -> str:
    line, _, rest = ast.unparse(node).partition("\n")
    return line + (" ..." if rest else "")
