// Without this script the page only lacks tooltips and the switch between light and dark.
(function () {
  var root = document.documentElement, button = document.getElementById("theme");
  var dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  function name() { button.textContent = dark ? "Light" : "Dark"; }
  button.hidden = false;
  name();
  button.addEventListener("click", function () {
    dark = !dark;
    root.setAttribute("data-theme", dark ? "dark" : "light");
    name();
  });

  var tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.body.appendChild(tip);
  function show(event) {
    var at = event.target.closest("[data-tip]");
    if (!at) { tip.hidden = true; return; }
    tip.textContent = at.getAttribute("data-tip");
    tip.hidden = false;
    var x = event.clientX + 14, y = event.clientY + 14;
    tip.style.left = Math.max(0, Math.min(x, root.clientWidth - tip.offsetWidth - 6)) + "px";
    tip.style.top = Math.max(0, Math.min(y, window.innerHeight - tip.offsetHeight - 6)) + "px";
  }
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  window.addEventListener("scroll", function () { tip.hidden = true; }, { passive: true });

  // On paper, the numbers of every figure are shown.
  var closed = [];
  window.addEventListener("beforeprint", function () {
    closed = [].slice.call(document.querySelectorAll("figure details:not([open])"));
    closed.forEach(function (each) { each.open = true; });
  });
  window.addEventListener("afterprint", function () {
    closed.forEach(function (each) { each.open = false; });
  });
})();
