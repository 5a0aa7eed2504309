// The address follows the place, and tells when the tab has moved or its session has changed.
let visit = 0, seen = "";
watch("value", () => {
  const here = props.value;
  const url = new URL(window.location.href);
  if (here.session) url.searchParams.set("session", here.session);
  else url.searchParams.delete("session");
  if (url.href !== window.location.href) {
    const isFirst = visit === 0;
    window.history[isFirst ? "replaceState" : "pushState"](null, "", url);
  }
  if (here.visit !== visit) {
    visit = here.visit;
    trigger("left");
    trigger("arrived");
  }
  const now = `${here.session} ${here.version}`;
  if (now !== seen) {
    seen = now;
    trigger("changed");
  }
});
window.addEventListener("popstate", () => {
  trigger("travelled", { session: new URLSearchParams(window.location.search).get("session") ?? "" });
});
// Other tabs begin chats, and a follower may have failed: look again now and then, and when the tab is looked at.
const lookAgain = () => {
  trigger("changed");
  trigger("arrived");
};
setInterval(lookAgain, 15000);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) lookAgain();
});
