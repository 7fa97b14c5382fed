// Ranked captions as a list of buttons; choosing one asks the server for its lens.
function render() {
  const root = element.querySelector(".captions") || element;
  const list = document.createElement("ol");
  (props.value || []).forEach((row, index) => {
    const button = document.createElement("button");
    button.type = "button";
    const text = document.createElement("span");
    text.textContent = row.caption;
    const likely = document.createElement("small");
    likely.textContent = `${row.likely} · score ${row.score}`;
    button.append(text, likely);
    button.addEventListener("click", () => {
      list.querySelectorAll("button").forEach((b) => b.classList.remove("chosen"));
      button.classList.add("chosen");
      trigger("select", { index });
    });
    const item = document.createElement("li");
    item.append(button);
    list.append(item);
  });
  const first = list.querySelector("button");
  if (first) first.classList.add("chosen");
  root.replaceChildren(list);
}

render();
watch("value", render);
