// Unfolds all runs of equal lines at once, and folds them again.
document.addEventListener("DOMContentLoaded", () => {
  const button = document.querySelector(".twins-bar .unfold");
  button?.addEventListener("click", () => {
    const open = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(open));
    document.querySelectorAll("details.fold").forEach((fold) => (fold.open = open));
  });
});
