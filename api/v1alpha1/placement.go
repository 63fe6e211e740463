package v1alpha1

// The names of what the chart installs to place pods of offloaded namespaces, whatever its kind; of the policy that
// keeps DaemonSets off virtual nodes; and of the webhook that does the same.
const (
	PlacementName           = "entente-placement"
	PlacementDaemonSetsName = "entente-daemonsets"
	PlacementDaemonSetsHook = "daemonsets.entente.dev"
)

// How pods are placed: by a policy, whose API version follows, by the webhook, or not at all.
const (
	PlacedByPolicy  = "policy/"
	PlacedByWebhook = "webhook"
	PlacedByNothing = "off"
)
