{{/* The name of all objects, but for the suffix of their component. Release "topodns": "topodns". At most 50 characters: with a suffix, a Service may have 63. */}}
{{- define "topodns.fullname" -}}
{{- $name := .Values.nameOverride | default "topodns" -}}
{{- .Values.fullnameOverride | default (ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name)) | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{/*
The labels by which Services, policies and budgets find pods. No value changes them, because Kubernetes refuses to change
the selector of a Deployment, and 'topodns doctor' looks for the name.
*/}}
{{- define "topodns.selector" -}}
app.kubernetes.io/name: topodns
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "topodns.labels" -}}
{{ include "topodns.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The labels that users give to pods. */}}
{{- define "topodns.podLabels" -}}
{{- with merge (dict) .Values.podLabels .Values.commonLabels }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* Whether the cluster is OpenShift: "true" or "false". */}}
{{- define "topodns.openshift" -}}
{{- ternary (.Capabilities.APIVersions.Has "security.openshift.io/v1") .Values.openshift (eq (toString .Values.openshift) "auto") -}}
{{- end }}

{{/* What pods may do. OpenShift takes users and groups from the range of the namespace, and refuses others. */}}
{{- define "topodns.podSecurityContext" -}}
{{- if eq (include "topodns.openshift" .) "true" }}
{{- omit .Values.podSecurityContext "runAsUser" "runAsGroup" "fsGroup" | toYaml }}
{{- else }}
{{- toYaml .Values.podSecurityContext }}
{{- end }}
{{- end }}

{{- define "topodns.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* Settings as flags, a list in YAML. null is not given. */}}
{{- define "topodns.flags" -}}
{{- range $name, $value := . }}
{{- range $item := ternary $value (list $value) (kindIs "slice" $value) }}
{{- if not (kindIs "invalid" $item) }}
- {{ printf "--%s=%s" $name (include "topodns.text" $item) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* YAML reads on and off as booleans, and Helm reads numbers as floats. */}}
{{- define "topodns.text" -}}
{{- if kindIs "bool" . }}{{ ternary "on" "off" . }}{{ else if kindIs "float64" . }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* What --client-source means, as a dictionary: {"pods": true, "nodes": true}. */}}
{{- define "topodns.clientSource" -}}
{{- range index .Values.dns.settings "client-source" | default "pods,nodes" | nospace | splitList "," }}
{{ . }}: true
{{- end }}
{{- end }}

{{/* The flags that name the other clusters. Of a file in a folder, the current context counts; hidden files are no clusters. Takes values with "clusters" and "clustersSecret". */}}
{{- define "topodns.clusterFlags" -}}
{{- if or .clusters .clustersSecret }}
- "--cluster-dir=/clusters"
{{- end }}
{{- range .clusters }}
{{- if hasKey . "context" }}
- {{ printf "--cluster=%s=/clusters/.contexts/%s#%s" .name .name .context | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "topodns.clusterMounts" -}}
{{- if or .clusters .clustersSecret -}}
- name: clusters
  mountPath: /clusters
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- end }}
{{- end }}

{{- define "topodns.clusterVolumes" -}}
{{- if or .clusters .clustersSecret -}}
# A pod does not start while a Secret is missing. topodns follows what changes in it.
- name: clusters
  projected:
    defaultMode: 0440
    sources:
    {{- with .clustersSecret }}
    - secret:
        name: {{ . | quote }}
    {{- end }}
    {{- range .clusters }}
    - secret:
        name: {{ .secret | quote }}
        items:
        - key: {{ .key | default "kubeconfig" | quote }}
          path: {{ ternary (printf ".contexts/%s" .name) .name (hasKey . "context") }}
    {{- end }}
{{ include "topodns.tmpVolume" . }}
{{- end }}
{{- end }}

{{/* The TLS library reads certificates and keys from files; those never get onto a disk. */}}
{{- define "topodns.tmpVolume" -}}
- name: tmp
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- end }}

{{/*
Where pods run, and with which Secrets their image is pulled. Takes a dictionary: "root", and "values", those of the
component, before those of all pods.
*/}}
{{- define "topodns.scheduling" -}}
{{- $all := .root.Values -}}
{{- with $all.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector | default $all.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations | default $all.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity | default $all.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
A Deployment with its PodDisruptionBudget. Takes a dictionary: "root", "component", "name" (of the objects), "container",
"values" (those of the component), "autoscaled", "answers" (whether clients wait for it), "token"; and as YAML "args",
"ports", "mounts", "volumes".
*/}}
{{- define "topodns.deployment" -}}
{{- $selector := printf "%s\napp.kubernetes.io/component: %s" (include "topodns.selector" .root) .component }}
{{- $values := .root.Values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "topodns.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .component }}
spec:
  {{- if not .autoscaled }}
  replicas: {{ .values.replicas }}
  {{- end }}
  {{- if .answers }}
  # An old pod ends only when a new one answers.
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxSurge: 1
      maxUnavailable: 0
  {{- end }}
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
  template:
    metadata:
      labels:
        {{- with include "topodns.podLabels" .root }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- $selector | nindent 8 }}
      {{- with $values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ .name }}
      automountServiceAccountToken: {{ .token }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
      # The node's own resolvers, because the cluster's DNS may forward to topodns.
      dnsPolicy: Default
      # No variables for Services, such as TOPODNS_PORT: they would look like settings.
      enableServiceLinks: false
      securityContext:
        {{- include "topodns.podSecurityContext" .root | nindent 8 }}
      {{- include "topodns.scheduling" . | nindent 6 }}
      topologySpreadConstraints:
      {{- range .values.topologySpreadConstraints }}
      {{- $ours := hasKey . "labelSelector" | ternary dict (dict "labelSelector" (dict "matchLabels" (fromYaml $selector))) }}
      {{- list (merge $ours .) | toYaml | nindent 6 }}
      {{- else }}
      {{- if .answers }}
      - maxSkew: 1
        topologyKey: topology.kubernetes.io/zone
        whenUnsatisfiable: {{ .values.zoneSpread | default "ScheduleAnyway" }}
        labelSelector:
          matchLabels:
            {{- $selector | nindent 12 }}
        matchLabelKeys:
        - pod-template-hash
      {{- end }}
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: ScheduleAnyway
        labelSelector:
          matchLabels:
            {{- $selector | nindent 12 }}
        matchLabelKeys:
        - pod-template-hash
      {{- end }}
      {{- if .answers }}
      {{- $delay := index .values.settings "shutdown-delay" }}
      # After SIGTERM, topodns answers until everybody who asks knows that this pod ends.
      terminationGracePeriodSeconds: {{ add 18 (ternary 12 $delay (kindIs "invalid" $delay)) }}
      {{- end }}
      containers:
      - name: {{ .container }}
        image: {{ include "topodns.image" .root | quote }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        args:
        {{- .args | trim | nindent 8 }}
        ports:
        {{- with .ports }}
        {{- . | nindent 8 }}
        {{- end }}
        - name: http
          containerPort: 9153
          protocol: TCP
        livenessProbe:
          httpGet:
            path: /livez
            port: http
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 3
        readinessProbe:
          httpGet:
            path: /readyz
            port: http
          periodSeconds: {{ ternary 2 5 .answers }}
          timeoutSeconds: 5
          failureThreshold: 3
        resources:
          {{- toYaml .values.resources | nindent 10 }}
        securityContext:
          {{- toYaml $values.securityContext | nindent 10 }}
        {{- with .mounts | trim }}
        volumeMounts:
        {{- . | nindent 8 }}
        {{- end }}
      {{- with .volumes | trim }}
      volumes:
      {{- . | nindent 6 }}
      {{- end }}
{{- if $values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "topodns.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  # Pods that do not answer do not delay the drain of a node.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- $selector | nindent 6 }}
{{- end }}
{{- end }}

{{/*
The spec of a pod that ends by itself. Takes a dictionary: "root", "account", "container", "values" (those of the
component near which it runs), "restartPolicy", "memory" (its limit); and as YAML "args", "mounts", "volumes".
*/}}
{{- define "topodns.endingPod" -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: true
restartPolicy: {{ .restartPolicy }}
dnsPolicy: Default
enableServiceLinks: false
securityContext:
  {{- include "topodns.podSecurityContext" .root | nindent 2 }}
{{- include "topodns.scheduling" . }}
containers:
- name: {{ .container }}
  image: {{ include "topodns.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
  {{- .args | trim | nindent 2 }}
  resources:
    requests:
      cpu: 50m
      memory: 64Mi
    limits:
      memory: {{ .memory }}
  securityContext:
    {{- toYaml .root.Values.securityContext | nindent 4 }}
  {{- with .mounts }}
  volumeMounts:
  {{- . | nindent 2 }}
  {{- end }}
{{- with .volumes }}
volumes:
{{- . | nindent 0 }}
{{- end }}
{{- end }}

{{/*
A NetworkPolicy that limits what comes in to a component. Takes a dictionary: "root", "component", "name", "ingress" in
YAML, and perhaps "annotations". What goes out stays open: no selector can name the address and port of the API server in
every cluster.

The kubelet's probes need no rule: a NetworkPolicy never stops what comes from the pod's own node.
*/}}
{{- define "topodns.networkPolicy" -}}
{{- if .root.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "topodns.annotated" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "topodns.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  policyTypes:
  - Ingress
  ingress:
  {{- .ingress | trim | nindent 4 }}
{{- end }}
{{- end }}

{{/* The labels of an object, and its "annotations" if there are any. */}}
{{- define "topodns.annotated" -}}
labels:
  {{- include "topodns.labels" .root | nindent 2 }}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A ServiceAccount whose token only those pods get that ask for it. Takes a dictionary: "root", "name", perhaps "annotations". */}}
{{- define "topodns.account" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  {{- include "topodns.annotated" . | nindent 2 }}
automountServiceAccountToken: false
{{- end }}

{{/*
A role for a ServiceAccount of the same name, and its binding. Takes "root", "name", "rules" in YAML, "namespaced" (whether
it is for a namespace alone), and perhaps "where" (which one, if it is not that of the release) and "annotations".
*/}}
{{- define "topodns.role" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "Role" "ClusterRole" .namespaced }}
metadata:
  name: {{ .name }}
  {{- if .namespaced }}
  namespace: {{ .where | default .root.Release.Namespace }}
  {{- end }}
  {{- include "topodns.annotated" . | nindent 2 }}
rules:
{{ .rules | trim }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "RoleBinding" "ClusterRoleBinding" .namespaced }}
metadata:
  name: {{ .name }}
  {{- if .namespaced }}
  namespace: {{ .where | default .root.Release.Namespace }}
  {{- end }}
  {{- include "topodns.annotated" . | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ ternary "Role" "ClusterRole" .namespaced }}
  name: {{ .name }}
subjects:
- kind: ServiceAccount
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* The right to lead by a Lease of a name. RBAC cannot limit 'create' by name. */}}
{{- define "topodns.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ . }}]
  verbs: [get, update]
{{- end }}
