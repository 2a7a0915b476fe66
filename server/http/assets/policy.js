// A policy's token and its fields: each writes the other.

const perTime = (algorithm) => !["", "concurrency", "unlimited", "block"].includes(algorithm);

export function bindPolicy() {
  const form = document.querySelector("[data-limit]");
  if (!form) return;
  const token = form.elements.policy;
  const [algorithm, count, per] = ["algorithm", "count", "per"].map((name) => form.elements[`p.${name}`]);
  const options = [...form.querySelectorAll(".option")].map((label) => {
    const input = label.querySelector("input");
    return { label, input, name: input.name.slice(2), isFlag: input.type === "checkbox" };
  });
  const has = (option, name) => option.label.classList.contains(`for-${name}`);
  const value = (option) =>
    option.isFlag ? (option.input.checked ? "on" : "") : option.input.value.trim();

  function join() {
    const name = algorithm.value;
    if (!name) return;
    let text = name;
    if (name === "concurrency" || perTime(name)) text += `:${count.value.trim()}`;
    if (perTime(name)) text += `/${per.value.trim()}`;
    for (const option of options.filter((option) => has(option, name) && value(option))) {
      text += option.isFlag ? `,${option.name}` : `,${option.name}=${value(option)}`;
    }
    token.value = text;
  }

  // Returns the parts of the token; undefined if the fields cannot show them.
  function parse(text) {
    const [head, ...given] = text.trim().split(/[,;]/);
    const [, name, count = "", per = ""] = /^(\w+)(?::([^/]*)(?:\/(.*))?)?$/.exec(head) ?? [];
    const isKnown = [...algorithm.options].some((option) => option.value === name);
    if (!isKnown || perTime(name) === !per || (count && /unlimited|block/.test(name))) return;
    const parts = { name, count, per, values: new Map() };
    for (const text of given.filter(Boolean)) {
      const equals = text.indexOf("=");
      const key = equals < 0 ? text : text.slice(0, equals);
      const option = options.find((option) => option.name === key);
      if (!option || !has(option, name) || option.isFlag !== equals < 0) return;
      parts.values.set(option, text.slice(equals + 1));
    }
    return parts;
  }

  function split() {
    const parts = parse(token.value);
    algorithm.value = parts?.name ?? "";
    if (!parts) return;
    count.value = parts.count;
    per.value = parts.per;
    for (const option of options) {
      if (option.isFlag) option.input.checked = parts.values.has(option);
      else option.input.value = parts.values.get(option) ?? "";
    }
  }

  token.addEventListener("input", split);
  form.querySelector(".options").addEventListener("input", join);
}
