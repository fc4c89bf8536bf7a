"""What a fuzz target raises."""


class Escaped(AssertionError):
    """Something other than a typed refusal came of a frame."""
