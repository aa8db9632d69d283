{{- /* Labels of every object, beside those that say of which component it is. */ -}}
{{- define "kubeairunway.labels" -}}
{{- $own := dict "app.kubernetes.io/instance" .Release.Name "app.kubernetes.io/managed-by" .Release.Service "app.kubernetes.io/part-of" "kubeairunway" -}}
{{- $chart := dict "helm.sh/chart" (printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_")) -}}
{{- toYaml (merge $own $chart .Values.commonLabels) -}}
{{- end -}}

{{- /* Image of a `program` by the values `image`: without tag and repository, that of the `release`, with its digest. */ -}}
{{- define "kubeairunway.image" -}}
{{- $released := not (or .image.tag .image.repository) -}}
{{- $digest := default (ternary (get .image.digests .program) "" $released) .image.digest -}}
{{- printf "%s/%s:%s" .image.registry (default .program .image.repository) (default .release .image.tag) -}}
{{- with $digest }}{{ printf "@%s" . }}{{ end -}}
{{- end -}}

{{- /* Topology spread `constraints`, which count the pods of the `component` unless they have a selector, as JSON. */ -}}
{{- define "kubeairunway.spread" -}}
{{- $selector := dict "labelSelector" (dict "matchLabels" (dict "app.kubernetes.io/component" .component)) -}}
{{- $all := list -}}
{{- range .constraints -}}
{{- $all = append $all (hasKey . "labelSelector" | ternary . (mergeOverwrite (deepCopy $selector) .)) -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{- /* Settings of the providers that are installed, as NAME=JSON, as JSON. */ -}}
{{- define "kubeairunway.settings" -}}
{{- $all := list -}}
{{- range $name, $provider := .Values.providers -}}
{{- if and $provider.enabled $provider.settings -}}
{{- $all = append $all (printf "%s=%s" $name (toJson $provider.settings)) -}}
{{- end -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}

{{- /* Kinds whose controllers this upgrade switches off, as JSON. Their Deployments are still in the release. */ -}}
{{- define "kubeairunway.switchedOff" -}}
{{- $release := .Release -}}
{{- $all := list -}}
{{- $ours := dict "modeldeployments" (list .Values.controller "kubeairunway-controller") "asyncactors" (list .Values.asyaOperator "asya-operator") -}}
{{- if and $release.IsUpgrade .Values.uninstallGuard.enabled (lookup "v1" "ServiceAccount" $release.Namespace "kubeairunway-uninstall-guard") -}}
{{- range $kind, $controller := $ours -}}
{{- if not (first $controller).enabled -}}
{{- with lookup "apps/v1" "Deployment" $release.Namespace (last $controller) -}}
{{- if eq $release.Name (dig "metadata" "annotations" "meta.helm.sh/release-name" "" .) -}}
{{- $all = append $all $kind -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $all -}}
{{- end -}}
