import not_installed


def predict(payload):
    return not_installed.predict(payload)
