"""Events, windows and sensors: small value types whose invariants are checked when they are made."""
