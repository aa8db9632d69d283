#!/bin/sh
# Copies the distribution's own configuration to where merge-config reads it. Runs in the distribution's image.
#
#   environment              meaning
#   RUN_CONFIG_PATH          the image's: the file that its entrypoint starts with
#   DISTRO_NAME              the image's, or the user's: name of a distribution of the Python package
#   LLS_DISTRIBUTION_NAME    spec.server.distribution.name, unset for an image of the user's own
umask 002
out="${1:-/opt/llama-stack/base-config}/run.yaml"
log="${TERMINATION_LOG:-/dev/termination-log}"
names=""

# Takes a file, or fails: another one is not what the image starts with.
take() {
    echo "Found the distribution's configuration at $1"
    if reason=$(cp "$1" "$out" 2>&1); then
        exit 0
    fi
    rm -f "$out"
    {
        echo "ERROR: Cannot read the configuration of the distribution image"
        echo "File: $1"
        echo "Reason: $reason"
        echo ""
        echo "Resolution: Make the file readable for every user of the distribution image, or provide a user ConfigMap with run.yaml (spec.server.userConfig)"
    } >"$log"
    cat "$log" >&2
    exit 1
}

# The specification's two places come first, save for what the image itself says.
chosen=""
for file in "$RUN_CONFIG_PATH" \
    /opt/app-root/run.yaml /etc/llama-stack/run.yaml \
    /opt/app-root/config.yaml /etc/llama-stack/config.yaml \
    /app/run.yaml /app/config.yaml; do
    if [ -z "$file" ] || [ ! -f "$file" ] || [ "$file" = "$chosen" ]; then
        continue
    elif [ -z "$chosen" ]; then
        chosen=$file
    else
        echo "NOTE: $file is not used, since $chosen comes first"
    fi
done
if [ -n "$chosen" ]; then
    take "$chosen"
fi

# Upstream images keep it in the Python package, under the name of the distribution. Every release of the package contains the
# files of all distributions, so without a name there is nothing to choose by.
for python in python3 python; do
    command -v "$python" >/dev/null 2>&1 || continue
    found=$("$python" - <<'PYTHON'
import importlib.util, os

named = [os.environ.get(key) for key in ("DISTRO_NAME", "LLS_DISTRIBUTION_NAME")]
present = set()
for package in ("llama_stack", "ogx"):
    spec = importlib.util.find_spec(package)
    for root in (spec.submodule_search_locations or []) if spec else []:
        for folder in ("distributions", "templates"):
            parent = os.path.join(root, folder)
            for name in os.listdir(parent) if os.path.isdir(parent) else []:
                for file in ("run.yaml", "config.yaml"):
                    if os.path.isfile(os.path.join(parent, name, file)):
                        present.add(name)
            for name in filter(None, named):
                for file in ("config.yaml", "run.yaml"):
                    path = os.path.join(parent, name, file)
                    if os.path.isfile(path):
                        print("file", path)
                        raise SystemExit
print("names", ", ".join(sorted(present)))
PYTHON
    )
    case $found in
    "file "*) take "${found#file }" ;;
    "names "*) names=${found#names } ;;
    esac
    break
done

{
    echo "ERROR: No run.yaml found in distribution image"
    echo "Checked paths:"
    echo "  - /opt/app-root/run.yaml (not found)"
    echo "  - /etc/llama-stack/run.yaml (not found)"
    echo "  - config.yaml in the same folders, run.yaml and config.yaml in /app (not found)"
    echo "  - the file that RUN_CONFIG_PATH names: ${RUN_CONFIG_PATH:-RUN_CONFIG_PATH is not set} (not found)"
    echo "  - the distribution that DISTRO_NAME names, in the Python packages llama_stack and ogx: ${DISTRO_NAME:-DISTRO_NAME is not set} (not found)"
    if [ -n "$LLS_DISTRIBUTION_NAME" ]; then
        echo "  - the distribution $LLS_DISTRIBUTION_NAME of spec.server.distribution.name, in the same packages (not found)"
    fi
    if [ -n "$names" ]; then
        echo "Distributions of these packages: $names"
    fi
    echo ""
    echo "Resolution: Either provide a user ConfigMap with run.yaml (spec.server.userConfig) or use a distribution image that includes run.yaml. If the image is built from one of the distributions of its Python package, name that in DISTRO_NAME of spec.server.containerSpec.env"
} >"$log"
cat "$log" >&2
exit 1
