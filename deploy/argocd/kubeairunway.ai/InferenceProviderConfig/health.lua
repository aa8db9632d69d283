-- Health of an InferenceProviderConfig: Healthy once its provider is ready, its settings are valid and all rules compile. The age of the heartbeat
-- cannot be judged here.
local status = obj.status or {}
for _, condition in ipairs(status.conditions or {}) do
  local lasting = condition.type == "RulesValid" or condition.type == "SettingsValid"
  if condition.status == "False" and (lasting or condition.reason == "UnknownUpstreamSchema") then
    return { status = "Degraded", message = condition.message }
  end
end
for _, condition in ipairs(status.conditions or {}) do
  if condition.status == "False" then
    return { status = "Progressing", message = condition.message }
  end
end
if status.ready then
  return { status = "Healthy", message = "" }
end
return { status = "Progressing", message = "Waiting for the provider's controller" }
