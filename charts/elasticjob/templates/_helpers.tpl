{{- define "elasticjob.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* An image of ours, by digest if there is one: include "elasticjob.image" (dict "image" .Values.image "chart" .Chart) */}}
{{- define "elasticjob.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "elasticjob.metricsName" -}}
{{- printf "%s-metrics" (include "elasticjob.fullname" . | trunc 55 | trimSuffix "-") -}}
{{- end -}}

{{/* The Secret with the CA that jobs' etcds trust. The operator creates it; uninstalling keeps it, for the jobs that still run. */}}
{{- define "elasticjob.caName" -}}
{{- printf "%s-ca" (include "elasticjob.fullname" . | trunc 60 | trimSuffix "-") -}}
{{- end -}}

{{/* Of an etcd tier, its StatefulSet, its Service and its Secret, which the operator creates: include "elasticjob.tierName" (dict "number" 0 "root" $) */}}
{{- define "elasticjob.tierName" -}}
{{- printf "%s-tier-%d" (include "elasticjob.fullname" .root | trunc 40 | trimSuffix "-") (int .number) -}}
{{- end -}}

{{/* JSON: the names of the Secrets of all tiers. */}}
{{- define "elasticjob.tierSecrets" -}}
{{- $names := list -}}
{{- range $number := until (int .Values.etcd.tiers) -}}
{{- $names = append $names (include "elasticjob.tierName" (dict "number" $number "root" $)) -}}
{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{- define "elasticjob.tierLabels" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: etcd-tier
elasticjob.dev/tier: {{ include "elasticjob.tierName" . }}
{{- end -}}

{{/* JSON: what the operator must know of the tiers. A client leaves a member at once whose node is gone, because it knows the others' addresses. */}}
{{- define "elasticjob.etcdTiers" -}}
{{- $closed := list -}}
{{- range .Values.etcd.closedTiers }}{{ $closed = append $closed (int .) }}{{ end -}}
{{- $tiers := list -}}
{{- $open := 0 -}}
{{- range $number := until (int .Values.etcd.tiers) -}}
{{- $name := include "elasticjob.tierName" (dict "number" $number "root" $) -}}
{{- $urls := list (printf "https://%s.%s.svc:2379" $name $.Release.Namespace) -}}
{{- range $member := until 3 -}}
{{- $urls = append $urls (printf "https://%s-%d.%s-peers.%s.svc:2379" $name $member $name $.Release.Namespace) -}}
{{- end -}}
{{- $takes := and (eq $.Values.etcd.mode "Shared") (not (has $number $closed)) -}}
{{- if $takes }}{{ $open = add1 $open }}{{ end -}}
{{- $tiers = append $tiers (dict "name" $name "endpoint" (join "," $urls) "open" $takes) -}}
{{- end -}}
{{- if and (eq .Values.etcd.mode "Shared") (not $open) -}}
{{- fail "etcd.mode Shared needs a tier that takes runs: raise etcd.tiers, or leave one out of etcd.closedTiers" -}}
{{- end -}}
{{- dict "tiers" $tiers "maxRuns" (int .Values.etcd.tier.maxRuns) "maxBytes" (mul (int .Values.etcd.tier.maxMiB) 1048576) | toJson -}}
{{- end -}}

{{- define "elasticjob.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "elasticjob.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "elasticjob.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "elasticjob.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "elasticjob.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the service account to use, or set serviceAccount.create" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Names of cluster-wide objects: two releases in two namespaces must not share them. */}}
{{- define "elasticjob.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "elasticjob.fullname" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* What the operator does with the objects of a namespace, and nothing else: it reads no secrets but those that jobs name, and never writes a job's spec. */}}
{{- define "elasticjob.namespacedRules" -}}
- apiGroups: [elasticjob.dev]
  resources: [elasticjobs]
  # delete: spec.lifecycle.ttlSecondsAfterFinished
  verbs: [get, list, watch, delete]
- apiGroups: [elasticjob.dev]
  resources: [elasticjobs/status]
  verbs: [patch]
# The progress of jobs whose status falls behind.
- apiGroups: [elasticjob.dev]
  resources: [elasticjobprogresses]
  verbs: [create, patch]
# Required for owner references to a job where OwnerReferencesPermissionEnforcement is on (OpenShift).
- apiGroups: [elasticjob.dev]
  resources: [elasticjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  # patch: takes the host name from a pod that has been replaced.
  verbs: [get, list, watch, create, patch, delete]
# Services of worker pods and of a job's etcd, and that etcd. patch: reverts changes made by others.
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
# The autoscaler of a job with spec.scaling.metrics.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# Of an etcd with three members.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# The certificates of a job's own etcd, and the credentials of a run for a shared one. Never list or watch.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, delete]
{{- with .Values.rendezvous.jobSecretNames }}
# What jobs name in spec.rendezvous.secretName.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ toJson . }}
  verbs: [get]
{{- end }}
{{- if eq .Values.queueing.kueue "Auto" }}
# Of jobs in a queue.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- if eq .Values.scheduling.gangs "Auto" }}
# Of jobs with spec.scheduling.gang: Kubernetes' own scheduler, Volcano, and the coscheduling plug-in.
- apiGroups: [scheduling.k8s.io, scheduling.volcano.sh, scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
- apiGroups: [""]
  resources: [events]
  # list: what controllers and kubelets say of objects that keep a job from starting. patch: counts an Event of a job again.
  verbs: [create, list, patch]
{{- end -}}

{{/* JSON: what the NetworkPolicies of jobs depend on. */}}
{{- define "elasticjob.jobNetworkPolicies" -}}
{{- $namespace := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) -}}
{{- $pods := dict "matchLabels" (include "elasticjob.selectorLabels" . | fromYaml) -}}
{{- dict
      "operator" (list (dict "namespaceSelector" $namespace "podSelector" $pods))
      "metricsPort" .Values.metrics.podMonitor.port
      "metricsFrom" .Values.networkPolicy.jobs.metricsFrom
    | toJson -}}
{{- end -}}

{{/* CEL: a list of namespaces in which no job runs. People who try things install into `default`, and run their jobs there. */}}
{{- define "elasticjob.closedNamespaces" -}}
{{- $own := or (eq .Release.Namespace "default") (has .Release.Namespace .Values.watchNamespaces) | ternary (list) (list .Release.Namespace) -}}
{{- concat (list "kube-system" "kube-public" "kube-node-lease") $own | toJson | replace "\"" "'" -}}
{{- end -}}

{{/* PromQL: series of the operator. Any pod may have a metric of the same name. */}}
{{- define "elasticjob.ownSeries" -}}
namespace="{{ .Release.Namespace }}",job="{{ include "elasticjob.metricsName" . }}"
{{- end -}}

{{- define "elasticjob.userName" -}}
{{- printf "system:serviceaccount:%s:%s" .Release.Namespace (include "elasticjob.serviceAccountName" .) -}}
{{- end -}}

{{- define "elasticjob.subject" -}}
- kind: ServiceAccount
  name: {{ include "elasticjob.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
