import ntk_alibi as na
from ntk_alibi.models import load

model, tokenizer, _ = load()  # a small BLOOM; yours: load("bigscience/bloom-560m")
names = "amber birch cedar coral delta ember flint grove heron ivory jasper kestrel".split()
line = "line {}: REGISTER_CONTENT is <{}>\n"
text = line.format("server-17", 4217)
for i in range(330):
    text += line.format(f"{names[i % 12]}-{names[i // 12 % 12]}-{i}", 1000 + 37 * i % 9000)
text += "What is the REGISTER_CONTENT of line server-17? <"
prompt = tokenizer(text, return_tensors="pt")  # 3 times the training length


def answer() -> str:
    tokens = model.generate(**prompt, max_new_tokens=2, do_sample=False)
    return str(tokenizer.decode(tokens[0, -2:]))


print("original:", answer())  # wrong
#> original: 9436
na.patch(model, "dynamic-ntk")
print("stretched:", answer())
#> stretched: 4217
