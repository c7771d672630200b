"""Raw texts to answers in TensorFlow's graph: a file for each kind of answer, as in answers/."""
