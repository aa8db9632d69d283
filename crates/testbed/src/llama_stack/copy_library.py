# Run as `python3.12 -c THIS FOLDER`.
import compileall, os, py_compile, shutil, sys, sysconfig

import pip

target = sys.argv[1]
unwanted = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "idlelib", "tkinter", "_tkinter*", "turtledemo", "lib2to3", "ensurepip", "config-*",
    "site-packages", "dist-packages",
)
shutil.copytree(sysconfig.get_path("stdlib"), target, symlinks=True, ignore=unwanted)
packages = os.path.dirname(os.path.dirname(pip.__file__))
for name in ("pip", f"pip-{pip.__version__}.dist-info"):
    shutil.copytree(os.path.join(packages, name), os.path.join(target, "site-packages", name), ignore=unwanted)
compileall.compile_dir(
    target, quiet=1, workers=0, stripdir=target, prependdir="/usr/local/lib/python3.12",
    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
)
