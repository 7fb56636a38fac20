"""Who answers: renderers, the in-process sampler, policies, the pocket model."""
