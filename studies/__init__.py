"""Programs of a checkout that trained the nano models and made the studies of docs/; not in wheels.

`python -m studies.nano_bloom` trains, `.schemes` compares position schemes, `.stretchings` compares
stretchings on models that nothing was tuned on, and `.encoder` stretches encoders. They may use
anything; the package never imports them.
"""
