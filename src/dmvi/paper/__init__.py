"""The paper's experiments: its models, exact posteriors, methods, tables."""
