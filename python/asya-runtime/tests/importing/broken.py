def predict(payload:
