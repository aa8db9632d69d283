def predict(payload):
    return payload
