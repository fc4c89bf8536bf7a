"""What the process may have open. Every connection is a file, a stranger's half-open one too."""

import resource

ENOUGH = 524_288


def raise_file_limit() -> int:
    """Raise the soft limit of open files as far as is allowed and useful; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
