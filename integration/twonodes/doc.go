// Package twonodes runs Entente between clusters of two nodes each: what happens when
// the node dies through which a cluster speaks to others. The clusters also differ from
// those of package e2e in settings that are not the defaults: API servers that check
// kubelets, and providers that let consumers see their own names.
package twonodes
