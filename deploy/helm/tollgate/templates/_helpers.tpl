{{- define "tollgate.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tollgate.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The domain in which each pod has its name. */}}
{{- define "tollgate.peers" -}}
{{ include "tollgate.fullname" . }}-peers.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "tollgate.peerSecret" -}}
{{- .Values.peerKey.existingSecret | default (printf "%s-peer" (include "tollgate.fullname" .)) -}}
{{- end -}}

{{/*
Any answer will do: a hung event loop accepts connections and answers none. The admin socket is there
for every `listen`, asks for no password and has room beyond connLimit.
*/}}
{{- define "tollgate.alive" -}}
exec:
  command:
    - tollgate
    - healthcheck
    - --live
    - --server
    - /run/tollgate/admin.sock
{{- end -}}

{{/* What cannot be right is refused before anything is made. */}}
{{- define "tollgate.check" -}}
{{- $nodes := int .Values.replicaCount -}}
{{- $expect := int .Values.expect -}}
{{- if and (not .Values.extraSeeds) (lt $nodes $expect) .Release.IsInstall -}}
{{- fail "replicaCount is below expect: the cluster would never be founded" -}}
{{- end -}}
{{- if and (ge $nodes (mul 2 $expect | int)) .Release.IsInstall -}}
{{- fail "replicaCount is twice expect or more: two clusters could be founded; begin with fewer and scale up" -}}
{{- end -}}
{{- if ge (int .Values.drainTimeout) (int .Values.terminationGracePeriodSeconds) -}}
{{- fail "drainTimeout must be below terminationGracePeriodSeconds" -}}
{{- end -}}
{{- $key := or .Values.peerKey.existingSecret .Values.peerKey.value -}}
{{- if and $key .Values.peerTls.existingSecret -}}
{{- fail "peerKey and peerTls: one of the two" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.enabled) -}}
{{- fail "metrics.serviceMonitor needs metrics.enabled" -}}
{{- end -}}
{{- if not (or $key .Values.peerTls.existingSecret) -}}
{{- fail "peers must be secured: set peerKey.existingSecret, peerKey.value or peerTls.existingSecret" -}}
{{- end -}}
{{- end -}}
