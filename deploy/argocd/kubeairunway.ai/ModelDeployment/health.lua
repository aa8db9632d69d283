-- Health of a ModelDeployment: its phase, and Suspended while it is paused.
local health = {
  Pending = "Progressing",
  Deploying = "Progressing",
  Running = "Healthy",
  Failed = "Degraded",
  Terminating = "Progressing",
}
local status = obj.status or {}
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Paused" and condition.status == "True" then
    return { status = "Suspended", message = condition.message }
  end
end
local observed = status.observedGeneration
if status.phase == nil or (observed ~= nil and observed < (obj.metadata.generation or 0)) then
  return { status = "Progressing", message = "Waiting for a controller to observe the spec" }
end
return { status = health[status.phase] or "Progressing", message = status.message or "" }
