"""Read YAML that people write: training configurations and datasets of their own.

YAML allows more than such files need, and some of it is dangerous: aliases can make a document of a few hundred bytes
stand for billions of values, a value can contain itself, and any depth of nesting is allowed. What comes from here is a
plain tree of mappings, lists, texts, numbers, true, false and null, of a bounded size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import yaml

from fate.errors import FateError
from fate.files import MAX_YAML_BYTES, read_text

#: Levels of mappings and lists inside each other.
MAX_DEPTH = 64
#: Values of a document, where each alias counts as often as it is used.
MAX_VALUES = 250_000
#: Characters of the longest number.
MAX_NUMBER_CHARACTERS = 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


def load_yaml(path: str | PathLike[str], expected: str = "a YAML file") -> Any:
    """The content of a regular file of at most ``MAX_YAML_BYTES``, as a plain tree in which nothing contains itself."""
    return parse_yaml(read_text(path, expected, MAX_YAML_BYTES), fspath(path))


def parse_yaml(text: str, source: str) -> Any:
    """The same for a text; ``source`` names it in errors."""
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        _check_nodes(root, 0, [MAX_VALUES])
        content = None if root is None else loader.construct_document(root)
    except RecursionError:
        raise FateError(f"{source}: is nested deeper than {MAX_DEPTH} levels; expected a few") from None
    except yaml.YAMLError as error:
        raise FateError(f"{source}: is not valid YAML ({' '.join(str(error).split())[:400]})") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:  # unfit for its tag
        raise FateError(
            f"{source}: holds a value that YAML cannot read ({type(error).__name__}: {str(error)[:200]}); put texts in"
            " quotes"
        ) from None
    return plain_tree(content, source)


def _check_nodes(node: Any, depth: int, left: list[int]) -> None:
    """Refuse depth, size and keys that occur twice before any value is made; an alias counts as often as it is used.

    ``left`` holds the number of values that may still come.
    """
    problem, left[0] = "", left[0] - 1
    inner = [] if node is None or isinstance(node, yaml.ScalarNode) else node.value
    if depth > MAX_DEPTH:
        problem = f"more than {MAX_DEPTH} levels are nested, or a value contains itself; expected a few levels"
    elif left[0] < 0:
        problem = f"it stands for more than {MAX_VALUES} values; expected fewer, and fewer aliases"
    elif isinstance(node, yaml.MappingNode):
        names = Counter(key.value for key, _ in inner if isinstance(key, yaml.ScalarNode))
        problem = next((f"the key {key[:80]!r} occurs twice; keep one of them" for key in names if names[key] > 1), "")
        inner = [each for pair in inner for each in pair]
    elif inner == [] and node is not None and node.tag in _NUMBERS and len(node.value) > MAX_NUMBER_CHARACTERS:
        problem = f"a number has {len(node.value)} characters; expected at most {MAX_NUMBER_CHARACTERS}"
    if problem:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    for each in inner:
        _check_nodes(each, depth + 1, left)


def plain_tree(content: Any, source: str, key_path: str = "", depth: int = 0) -> Any:
    """A copy of ``content`` that shares nothing, with tuples as lists; refuses what YAML and JSON cannot both hold.

    Errors name the ``source``, and the ``depth`` keys that lead to a value, such as "run.seed".
    """
    if depth > MAX_DEPTH:
        raise FateError(f"{source}: {key_path[:80]}… is nested deeper than {MAX_DEPTH} levels; expected a few")
    if isinstance(content, Mapping):
        tree = {}
        for key, value in content.items():
            if not isinstance(key, str | int | float | None):
                raise _not_plain(key, source, f"a key of {key_path or 'the document'}")
            name = plain_tree(key, source, f"a key of {key_path or 'the document'}", depth + 1)
            tree[name] = plain_tree(value, source, f"{key_path}.{key}"[:200].removeprefix("."), depth + 1)
        return tree
    if isinstance(content, list | tuple):
        return [plain_tree(value, source, f"{key_path}[{at}]", depth + 1) for at, value in enumerate(content)]
    if isinstance(content, str) and ("\0" in content or any("\ud800" <= sign <= "\udfff" for sign in content)):
        raise FateError(
            f"{source}: {key_path or 'the text'} = {content[:80]!r} holds a zero byte or half of a character; expected"
            " plain text"
        )
    if not isinstance(content, str | int | float | None):
        raise _not_plain(content, source, key_path or "the document")
    return content


def _not_plain(content: object, source: str, key_path: str) -> FateError:
    return FateError(
        f"{source}: {key_path} = {str(content)[:80]!r} is a {type(content).__name__}; expected a text, a number, a list"
        " or keys; put a text that looks like a date in quotes"
    )
