#!/bin/sh
# Copies the distribution's own configuration to where merge-config reads it. Runs in the distribution's image.
umask 002
out="${1:-/opt/llama-stack/base-config}/run.yaml"

# The specification's two places come first, save for what the image itself says.
for file in "$RUN_CONFIG_PATH" \
    /opt/app-root/run.yaml /etc/llama-stack/run.yaml \
    /opt/app-root/config.yaml /etc/llama-stack/config.yaml \
    /app/run.yaml /app/config.yaml; do
    if [ -n "$file" ] && [ -f "$file" ]; then
        echo "Found the distribution's configuration at $file"
        cp "$file" "$out" && exit 0
    fi
done

# Upstream images keep it in the Python package, under the name of the distribution.
for python in python3 python; do
    command -v "$python" >/dev/null 2>&1 || continue
    file=$("$python" - <<'PYTHON'
import importlib.util, os

names = [os.environ.get(key) for key in ("DISTRO_NAME", "LLS_DISTRIBUTION_NAME")]
for package in ("llama_stack", "ogx"):
    spec = importlib.util.find_spec(package)
    for root in (spec.submodule_search_locations or []) if spec else []:
        for folder in ("distributions", "templates"):
            for name in filter(None, names):
                for file in ("config.yaml", "run.yaml"):
                    path = os.path.join(root, folder, name, file)
                    if os.path.isfile(path):
                        print(path)
                        raise SystemExit
PYTHON
    )
    if [ -n "$file" ]; then
        echo "Found the distribution's configuration at $file"
        cp "$file" "$out" && exit 0
    fi
    break
done

{
    echo "ERROR: No run.yaml found in distribution image"
    echo "Checked paths:"
    echo "  - /opt/app-root/run.yaml (not found)"
    echo "  - /etc/llama-stack/run.yaml (not found)"
    echo "  - config.yaml in the same folders, run.yaml and config.yaml in /app, and the file RUN_CONFIG_PATH names (not found)"
    echo "  - distributions/$DISTRO_NAME$LLS_DISTRIBUTION_NAME of the Python packages llama_stack and ogx (not found)"
    echo ""
    echo "Resolution: Either provide a user ConfigMap with run.yaml (spec.server.userConfig) or use a distribution image that includes run.yaml"
} >"${TERMINATION_LOG:-/dev/termination-log}"
cat "${TERMINATION_LOG:-/dev/termination-log}" >&2
exit 1
