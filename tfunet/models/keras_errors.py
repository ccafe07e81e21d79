"""Why a call of a model failed, out of what Keras and AutoGraph say around it.

Imports no TensorFlow.
"""

import ast
import re

# AutoGraph puts the lines of the user's code first, and indents what was raised.
USER_CODE = re.compile(r"\s*in user code:\n.*?\n {4}\w+: (.*)", re.S)
COLOUR = re.compile(r"\x1b\[\d*m")
FRAMES = (
    re.compile(r"\s*Exception encountered when calling [^\n]*(?:\n+|$)"),
    re.compile(r"\s*Could not automatically infer the output shape.*?Error encountered:\s*", re.S),
)
ARGUMENTS = re.compile(r"\s*\n\s*Arguments received by .*", re.S)


def cause_line(error: BaseException) -> str:
    """Return the first line of the cause of an error that Keras may have raised again, worded."""
    text = str(error)
    if user_code := USER_CODE.match(text):
        text = user_code[1].strip()
    if isinstance(error, KeyError):
        text = _unquoted(text)
    text = ARGUMENTS.sub("", COLOUR.sub("", text))
    while frame := next((frame for frame in FRAMES if frame.match(text)), None):
        text = frame.sub("", text, count=1)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if isinstance(error, KeyError) or not line:
        # The text of a KeyError is no more than the key.
        kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
        return f"{kind.__name__}: {line}".removesuffix(": ")
    return line


def _unquoted(text: str) -> str:
    """Return the text of a KeyError, which is the representation of its argument, as it was."""
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text
