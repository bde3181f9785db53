"""Refuses dependencies whose licence is not on the list in deny.toml.

cargo-deny does the same and more, but is not installed everywhere; this needs only `cargo metadata`.
Usage: licences.py METADATA.json
"""

import json
import re
import sys
import tomllib


def is_allowed(expression, allowed):
    """Evaluates an SPDX expression: OR chooses, AND needs both, WITH belongs to the licence before it."""
    tokens = re.findall(r"[()]|[\w.+-]+", expression.replace("/", " OR "))

    def choice():
        result = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            result = both() or result
        return result

    def both():
        result = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            result = one() and result
        return result

    def one():
        token = tokens.pop(0)
        if token == "(":
            result = choice()
            tokens.pop(0)
            return result
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            token += " WITH " + tokens.pop(0)
        return token in allowed

    return choice()


def main():
    with open("deny.toml", "rb") as file:
        allowed = set(tomllib.load(file)["licenses"]["allow"])
    with open(sys.argv[1], encoding="utf-8") as file:
        packages = [package for package in json.load(file)["packages"] if package["source"]]
    refused = [
        f"{package['name']} {package['version']}: {package['license']}"
        for package in packages
        if not package["license"] or not is_allowed(package["license"], allowed)
    ]
    if refused:
        sys.exit("Licences that deny.toml does not allow:\n  " + "\n  ".join(sorted(refused)))
    print(f"{len(packages)} dependencies, all under an allowed licence")


main()
