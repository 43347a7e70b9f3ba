"""The lab: every claim of the five documents, simulated, measured, and shown."""
