// Copy buttons, and the theme's menu buttons for keyboards and screen readers.

const ICONS = `<svg class="waiting" viewBox="0 0 16 16" aria-hidden="true">
  <rect x="5.5" y="5.5" width="8" height="8" rx="1.5"/><path d="M3.5 10.5h-1v-8h8v1"/></svg>
  <svg class="done" viewBox="0 0 16 16" aria-hidden="true"><path d="m3 8.5 3.5 3.5L13 4.5"/></svg>`;

function copyButton(name, text) {
  const button = document.createElement("button");
  Object.assign(button, { type: "button", className: "copy", title: name, ariaLabel: name, innerHTML: ICONS });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.classList.add("copied");
    button.ariaLabel = "Copied";
    setTimeout(() => {
      button.classList.remove("copied");
      button.ariaLabel = name;
    }, 2000);
  });
  return button;
}

function addCopyButtons() {
  for (const code of document.querySelectorAll(".highlight > pre:not(.side)"))
    code.parentElement.append(copyButton("Copy this code", () => code.textContent));
  for (const place of document.querySelectorAll(".piece .place:not(.missing)")) {
    const side = place.classList.contains("torch") ? "torch" : "jax";
    const lines = place.closest(".piece").querySelectorAll(`.side.${side} .src`);
    const name = `Copy ${place.querySelector("code").textContent} in ${place.querySelector("b").textContent}`;
    place.append(copyButton(name, () => [...lines].map((line) => line.textContent).join("")));
  }
}

// The theme opens its menus by labels of hidden checkboxes, which no keyboard reaches. The checkboxes have names.
function nameMenuButtons() {
  for (const label of document.querySelectorAll("label:is(.nav-overlay-icon, .toc-overlay-icon, .sidebar-tree label)")) {
    Object.assign(label, { role: "button", tabIndex: 0, ariaLabel: label.control.ariaLabel });
    label.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      label.click();
    });
  }
}

document.addEventListener("DOMContentLoaded", () => {
  // A browser has no clipboard for pages that came over a network without encryption.
  if (navigator.clipboard) addCopyButtons();
  nameMenuButtons();
});
