{{/* Labels of every object; call with (dict "root" $ "component" NAME). */}}
{{- define "entente.labels" -}}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: entente
{{ include "entente.selector" . }}
{{- with .extra }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels that select a component's pods; they never change. */}}
{{- define "entente.selector" -}}
app.kubernetes.io/name: entente
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "entente.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What each process learns about where it runs. */}}
{{- define "entente.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: HOST_IP
  valueFrom: {fieldRef: {fieldPath: status.hostIP}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
# Go collects rather than being killed.
- name: GOMEMLIMIT
  valueFrom: {resourceFieldRef: {resource: limits.memory}}
{{- end }}

{{- define "entente.logArgs" -}}
- --log-level={{ .Values.log.level }}
- --log-format={{ .Values.log.format }}
{{- end }}

{{/* Pod Security "restricted", and as little as there is beyond it. */}}
{{- define "entente.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "entente.restrictedContainer" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The fabric changes the host's network: root in name, with one capability. */}}
{{- define "entente.fabricContainer" -}}
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL], add: [NET_ADMIN]}
{{- end }}

{{/* Virtual nodes run none of our pods. */}}
{{- define "entente.realNodes" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - {key: entente.dev/virtual-node, operator: DoesNotExist}
          - {key: kubernetes.io/os, operator: In, values: [linux]}
{{- end }}

{{/* The user that a ServiceAccount of ours is to the API server. */}}
{{- define "entente.user" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ .name }}
{{- end }}

{{/* Runs before anything of the chart is deleted. */}}
{{- define "entente.cleanup.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/*
CEL: the fields for which a pod cannot run in another cluster, as a list of text. They
are the refused rows of the table in docs/offloading.md. It needs the variables spec (a
PodSpec) and containers (all of them).
*/}}
{{- define "entente.cannotCross" -}}
(has(variables.spec.hostNetwork) && variables.spec.hostNetwork ? ['spec.hostNetwork'] : []) +
(has(variables.spec.hostPID) && variables.spec.hostPID ? ['spec.hostPID'] : []) +
(has(variables.spec.hostIPC) && variables.spec.hostIPC ? ['spec.hostIPC'] : []) +
(has(variables.spec.resourceClaims) && variables.spec.resourceClaims.size() > 0 ? ['spec.resourceClaims'] : []) +
(has(variables.spec.resources) && has(variables.spec.resources.claims) && variables.spec.resources.claims.size() > 0 ? ['spec.resources.claims'] : []) +
(has(variables.spec.securityContext) && has(variables.spec.securityContext.windowsOptions) &&
  has(variables.spec.securityContext.windowsOptions.hostProcess) && variables.spec.securityContext.windowsOptions.hostProcess
  ? ['spec.securityContext.windowsOptions.hostProcess'] : []) +
(has(variables.spec.affinity) ? (
  (has(variables.spec.affinity.podAffinity) && has(variables.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution)
    ? variables.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution : []) +
  (has(variables.spec.affinity.podAntiAffinity) && has(variables.spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution)
    ? variables.spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution : [])
).filter(t, t.topologyKey in ['kubernetes.io/hostname', 'topology.kubernetes.io/zone', 'topology.kubernetes.io/region'] && has(t.namespaceSelector) && (
  (has(t.namespaceSelector.matchLabels) && t.namespaceSelector.matchLabels.exists(k, k != 'kubernetes.io/metadata.name')) ||
  (has(t.namespaceSelector.matchExpressions) && t.namespaceSelector.matchExpressions.exists(e, e.key != 'kubernetes.io/metadata.name')))
).map(t, 'namespaceSelector of spec.affinity') : []) +
(has(variables.spec.volumes) ? variables.spec.volumes.filter(v,
  !(has(v.configMap) || has(v.secret) || has(v.projected) || has(v.downwardAPI) || has(v.emptyDir) || has(v.image) ||
    has(v.persistentVolumeClaim) || has(v.ephemeral)) ||
  (has(v.projected) && has(v.projected.sources) && v.projected.sources.exists(s, has(s.clusterTrustBundle) || has(s.podCertificate)))
).map(v, 'volume ' + v.name) : []) +
variables.containers.filter(c, has(c.ports) && c.ports.exists(p, (has(p.hostPort) && p.hostPort != 0) || (has(p.hostIP) && p.hostIP != ''))
).map(c, 'hostPort of container ' + c.name) +
variables.containers.filter(c, has(c.volumeDevices) && c.volumeDevices.size() > 0).map(c, 'volumeDevices of container ' + c.name) +
variables.containers.filter(c, has(c.resources) && has(c.resources.claims) && c.resources.claims.size() > 0).map(c, 'resources.claims of container ' + c.name) +
variables.containers.filter(c, has(c.securityContext) && has(c.securityContext.windowsOptions) &&
  has(c.securityContext.windowsOptions.hostProcess) && c.securityContext.windowsOptions.hostProcess).map(c, 'hostProcess of container ' + c.name)
{{- end }}

{{/* What lets pods onto virtual nodes: the version in which the API server has MutatingAdmissionPolicy, or "webhook". */}}
{{- define "entente.placement" -}}
{{- if eq .Values.placement.by "Webhook" }}webhook
{{- else if semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version }}v1
{{- else if .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy" }}v1beta1
{{- else if eq .Values.placement.by "Policy" }}{{ fail "placement.by=Policy: this API server has no MutatingAdmissionPolicy in v1 or v1beta1; leave placement.by=Auto" }}
{{- else }}webhook
{{- end }}
{{- end }}

{{/* Which DaemonSets are kept off virtual nodes. */}}
{{- define "entente.daemonSets" -}}
# A change of the template only for our sake would restart all its pods.
- name: the-template-is-new
  expression: "oldObject == null || object.spec.template != oldObject.spec.template"
- name: virtual-nodes-are-tolerated
  expression: >-
    has(object.spec.template.spec.tolerations) && object.spec.template.spec.tolerations.exists(t,
      (!has(t.effect) || t.effect in ['', 'NoSchedule']) && (!has(t.key) || t.key in ['', 'entente.dev/virtual-node']))
{{- end }}

{{/* CEL: all containers of the variable spec. */}}
{{- define "entente.containers" -}}
(has(variables.spec.initContainers) ? variables.spec.initContainers : []) + variables.spec.containers
{{- end }}

{{- /* What a policy offers, and on what terms: values.policy. */}}
{{- define "entente.policy.terms" -}}
  {{- with .Values.policy }}
  accept: {{ .accept }}
  limits:
    percentOfFree: {{ .percentOfFree }}
    {{- with .resources }}
    resources: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with .total }}
    total: {{- toYaml . | nindent 6 }}
    {{- end }}
    overcommitPercent: {{ .overcommitPercent }}
  {{- with .price }}
  {{- if .perHour }}
  price:
    currency: {{ required "policy.price.currency: say in which currency policy.price.perHour is" .currency }}
    perHour:
      {{- range $name, $price := .perHour }}
      {{ $name }}: {{ $price | quote }}
      {{- end }}
  {{- end }}
  {{- end }}
  {{- with .pools }}
  pools: {{- toYaml . | nindent 4 }}
  {{- end }}
  renewal: {{ .renewal }}
  notice: {{ .notice }}
  statementPeriod: {{ .statementPeriod }}
  {{- if not (has .podSecurity .podSecurityLevels) }}
  {{- fail (printf "policy.podSecurity is %s, and policy.podSecurityLevels lacks it: consumers' namespaces could not be created. Add it there, or choose one of %s" .podSecurity (join ", " .podSecurityLevels)) }}
  {{- end }}
  podSecurity: {{ .podSecurity }}
  homeAPI: {{ .homeAPI }}
  networkPolicies: {{ .networkPolicies }}
  contractDuration: {{ .contractDuration }}
  {{- with .limitRange }}
  limitRange: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .runtimeClasses }}
  runtimeClasses: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .storageClasses }}
  storageClasses: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- /* Empty is not absent: it is none, and not the definition's default. */}}
  {{- if hasKey . "nodeSelectorKeys" }}
  nodeSelectorKeys: {{- toYaml .nodeSelectorKeys | nindent 4 }}
  {{- end }}
  {{- with .services }}
  services: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- /* Empty is all namespaces, absent none. */}}
  {{- if kindIs "map" .clusterSet }}
  clusterSet: {{- toYaml .clusterSet | nindent 4 }}
  {{- end }}
  {{- with .namespaceNames }}
  namespaceNames: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .nodeLabels }}
  nodeLabels: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end }}

{{/*
A policy of the chart, which Helm writes if it is a hook, and else the agent. One that Helm finds no
kind for at an upgrade, as the install before failed, is for the agent.
*/}}
{{- define "entente.policy" -}}
apiVersion: entente.dev/v1alpha1
kind: PeeringPolicy
metadata:
  name: {{ .name }}
  labels: {{- include "entente.labels" (dict "root" .root "component" "policy") | nindent 4 }}
{{- if .hook }}
  annotations:
    helm.sh/hook: {{ include "entente.policy.hooks" .root }}
    helm.sh/hook-delete-policy: before-hook-creation
{{- end }}
spec:
  {{- if eq .name "entente-automatic" }}
  {{- include "entente.policy.automatic" .root }}
  {{- end }}
  {{- include "entente.policy.terms" .root }}
{{- end }}

{{/* When Helm writes the chart's policies. */}}
{{- define "entente.policy.hooks" -}}
{{- if or .Release.IsInstall (include "entente.policy.served" .) }}post-upgrade,{{ end }}post-rollback
{{- end }}

{{/* Not empty at an upgrade for which the API server has the kind of the chart's policies. */}}
{{- define "entente.policy.served" -}}
{{- if and .Release.IsUpgrade (.Capabilities.APIVersions.Has "entente.dev/v1alpha1/PeeringPolicy") }}served{{ end }}
{{- end }}

{{/* With whom, and how, a policy peers by itself: values.discovery.automatic. */}}
{{- define "entente.policy.automatic" }}
  {{- $a := .Values.discovery.automatic }}
  {{- $group := $a.group | default dict }}
  {{- $ref := $group.secretRef | default dict }}
  automatic:
    {{- with $a.clusterIDs }}
    clusterIDs: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- if $group.name }}
    group:
      name: {{ $group.name }}
      secretRef:
        {{- if $group.secret }}
        name: entente-automatic-group
        key: secret
        {{- else }}
        name: {{ $ref.name }}
        key: {{ $ref.key | default "secret" }}
        {{- end }}
    {{- end }}
    {{- if $a.trustOnFirstUse }}
    trustOnFirstUse: true
    {{- end }}
    {{- with $a.sources }}
    sources: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $a.direction }}
    direction: {{ . }}
    {{- end }}
    {{- with $a.resources }}
    resources: {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $a.priceCeiling }}
    {{- if .amount }}
    {{- if not (regexMatch "^(0|[1-9][0-9]{0,8})([.][0-9]{0,8}[1-9])?$" .amount) }}
    {{- fail (printf "discovery.automatic.priceCeiling.amount: %q is not decimal: digits, and up to nine more after a point, the last of them not 0: 0.5, not 0.50" .amount) }}
    {{- end }}
    priceCeiling:
      currency: {{ required "discovery.automatic.priceCeiling.currency: say in which currency priceCeiling.amount is" .currency }}
      amount: {{ .amount | quote }}
    {{- end }}
    {{- end }}
    {{- with $a.namespaces }}
    namespaces: {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}

{{/* The labels that only the chart's own policies have: label and value. */}}
{{- define "entente.policy.labels" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: entente
{{- end }}

{{/* Not empty where a policy has a name of the chart's and is not the chart's: a lookup
finds nothing where the cluster cannot be asked. */}}
{{- define "entente.policy.foreign" -}}
{{- if .root.Capabilities.APIVersions.Has "entente.dev/v1alpha1/PeeringPolicy" }}
{{- with lookup "entente.dev/v1alpha1" "PeeringPolicy" "" .name }}
{{- $labels := dig "metadata" "labels" (dict) . }}
{{- range $label, $value := fromYaml (include "entente.policy.labels" $.root) }}
{{- if ne (get $labels $label) $value }}foreign{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Refuses to replace a policy that is not the chart's. */}}
{{- define "entente.policy.name" -}}
{{- if include "entente.policy.foreign" . }}
{{- fail (printf "PeeringPolicy %s is not the chart's, and the chart would replace it: give it another name" .name) }}
{{- end }}
{{- end }}

{{- /*
Removes a policy that the chart made when it was on. Helm forgets hooks that are not
rendered any more, so this one takes its place and is deleted at once. Helm finds hooks
by their names: the policy entente-policy-names keeps these for the chart.
*/}}
{{- define "entente.policy.none" -}}
{{- if not (include "entente.policy.foreign" .) }}
---
apiVersion: entente.dev/v1alpha1
kind: PeeringPolicy
metadata:
  name: {{ .name }}
  labels: {{- include "entente.labels" (dict "root" .root "component" "policy") | nindent 4 }}
  annotations:
    helm.sh/hook: {{ include "entente.policy.hooks" .root }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  # For the moment that it is there it is about no cluster, and offers nothing.
  clusterSelector:
    matchExpressions:
      - {key: entente.dev/peer, operator: Exists}
      - {key: entente.dev/peer, operator: DoesNotExist}
  accept: Never
{{- end }}
{{- end }}

{{/* Refuses a HOST:PORT whose port no socket can have. */}}
{{- define "entente.checkPort" -}}
{{- if regexMatch `^([^:]*|\[.*\]):[0-9]+$` .value }}
{{- $port := regexFind "[0-9]+$" .value }}
{{- if or (gt (len $port) 5) (lt (atoi $port) 1) (gt (atoi $port) 65535) }}
{{- fail (printf "%s: %q: its port is not from 1 to 65535" .key .value) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Refuses what cannot be the address of a resolver, in words that the schema does not have: it
checks the form of bare addresses only.
*/}}
{{- define "entente.checkResolver" -}}
{{- $byte := "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])" }}
{{- $bare := `^[0-9.]+$|^[^][]*:[^][]*:` }}
{{- $withPort := printf `^(%s([.]%s){3}|\[[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\]):[0-9]+$` $byte $byte }}
{{- if not (or (regexMatch $bare .) (regexMatch $withPort .)) }}
{{- fail (printf "discovery.resolvers: %q is neither an IP address nor ADDRESS:PORT: write it as 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:5353" .) }}
{{- end }}
{{- include "entente.checkPort" (dict "key" "discovery.resolvers" "value" .) }}
{{- end }}
