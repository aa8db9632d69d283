"""Provider images with the dependency sets of real providers (provider_sets.json), and which of them fit together.

    python3 provider_sets.py FOLDER

The wheels have the real names, versions and requirements, and no code. Prints, as JSON, whether each set fits to those before
it that fit. This is decided without a resolver: the first installed version of a package stays, and then every
requirement must be met.
"""

import json
import os
import sys

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

from images import Image, spec

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "provider_sets.json"), encoding="utf-8") as file:
    REAL = json.load(file)


def images(out):
    for one in REAL["sets"]:
        name = "lls-" + one["id"]
        module = name.replace("-", "_")
        image = Image(out, one["id"]).spec(spec(module, one["provider_type"], one["api"]))
        image.wheel(name, "1.0.0", {f"{module}/__init__.py": ""}, one["requires"])
        for package in one["packages"]:
            image.wheel(*package.split("=="), {}, REAL["packages"][package])


def fit(order):
    sets = {one["id"]: one for one in REAL["sets"]}
    present, fits = {}, []
    for id in order:
        union = dict(present)
        for package in sets[id]["packages"]:
            name, version = package.split("==")
            union.setdefault(name, (version, REAL["packages"][package]))
        union["lls-" + id] = ("1.0.0", sets[id]["requires"])
        fits.append(is_consistent(union))
        if fits[-1]:
            present = union
    return fits


def is_consistent(packages):
    """Whether every requirement is met by the one version that is there."""
    parsed = {name: [Requirement(text) for text in requires] for name, (_, requires) in packages.items()}
    extras = {name: {""} for name in parsed}
    size = 0
    # Requested extras require others.
    while size != (size := sum(map(len, extras.values()))):
        for name, requires in parsed.items():
            for requirement in requires:
                if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras[name]):
                    continue
                version, _ = packages.get(canonicalize_name(requirement.name), (None, None))
                if not (version and requirement.specifier.contains(version, prereleases=True)):
                    return False
                extras[canonicalize_name(requirement.name)].update(requirement.extras)
    return True


if __name__ == "__main__":
    images(sys.argv[1])
    order = [one["id"] for one in REAL["sets"]]
    print(json.dumps(list(zip(order, fit(order)))))
