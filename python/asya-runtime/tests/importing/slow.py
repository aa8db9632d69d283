import os
import time
from pathlib import Path

NOTES = os.environ["NOTES"]
Path(NOTES).write_text("importing\n")
while not Path(NOTES + ".go").exists():
    time.sleep(0.01)


def predict(payload):
    return payload
