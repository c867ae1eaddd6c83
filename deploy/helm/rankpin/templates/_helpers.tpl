{{- define "rankpin.name" -}}
{{- if contains "rankpin" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-rankpin" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "rankpin.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels that select: never changed. Takes a dict with root and component. */}}
{{- define "rankpin.selector" -}}
app.kubernetes.io/name: rankpin
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "rankpin.labels" -}}
{{ include "rankpin.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* What every pod has: no service account, no variables of services that could be taken for settings, no root. */}}
{{- define "rankpin.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: { runAsNonRoot: true, seccompProfile: { type: RuntimeDefault } }
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "rankpin.selector" . | nindent 8 }}
{{- end }}

{{- define "rankpin.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{- define "rankpin.probes" -}}
livenessProbe: { httpGet: { path: /healthz, port: http }, periodSeconds: 10, failureThreshold: 3 }
readinessProbe: { httpGet: { path: /readyz, port: http }, periodSeconds: 2, failureThreshold: 2 }
startupProbe: { httpGet: { path: /healthz, port: http }, periodSeconds: 1, failureThreshold: 60 }
{{- end }}

{{/* Where NATS and names are, for the network policies of everything that speaks NATS. */}}
{{- define "rankpin.egress" -}}
- to:
    - podSelector:
        matchLabels: {{- toYaml .Values.nats.podLabels | nindent 10 }}
      {{- with .Values.nats.namespace }}
      namespaceSelector: { matchLabels: { kubernetes.io/metadata.name: {{ . }} } }
      {{- end }}
  ports: [{ port: 4222 }]
- to: [namespaceSelector: { matchLabels: { kubernetes.io/metadata.name: kube-system } }]
  ports: [{ port: 53, protocol: UDP }, { port: 53, protocol: TCP }]
{{- end }}
