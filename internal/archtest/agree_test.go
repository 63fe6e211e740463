package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// What one part sends or writes, the next one takes: each limit is at most the one behind it, in
// the order in which the data go. A limit is a constant (PACKAGE.NAME), the items that a proto
// allows (proto MESSAGE.FIELD), or those that a custom resource does (KIND.FIELD.FIELD).
func TestLimitsAgree(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../..")
	for what, chain := range map[string]string{
		"gateways":                   "peering.MaxGateways, proto Network.gateways, ForeignCluster.status.network.gateways, Tunnel.spec.gateways, tunnel/plan.maxGateways",
		"in-band gateways":           "peering.MaxInBandGateways, ForeignCluster.spec.inBand.gateways, Tunnel.spec.gateways",
		"gateways with Services":     "internal/gateways.maxServices, peering.MaxGateways",
		"other nodes":                "peering.MaxNodes, proto Network.nodes, ForeignCluster.status.network.nodes, Tunnel.spec.nodes, tunnel/plan.maxRemoteNodes",
		"pods of a node":             "peering.MaxNodePods, FabricNode.spec.announcedPodCIDRs, proto Gateway.pod_prefixes, ForeignCluster.status.network.nodes.podCIDRs, Tunnel.spec.nodes.podCIDRs, tunnel/plan.MaxDirectPods",
		"pods of a gateway":          "peering.MaxNodePods, ForeignCluster.status.network.gateways.podCIDRs, Tunnel.spec.gateways.podCIDRs, tunnel/plan.MaxDirectPods",
		"endpoints":                  "peering.MaxEndpoints, FabricNode.spec.endpoints, proto Gateway.endpoints, ForeignCluster.status.network.gateways.endpoints, Tunnel.spec.gateways.endpoints, tunnel/plan.MaxEndpoints",
		"where a gateway is seen":    "peering.MaxObserved, proto Gateway.observed_endpoints, ForeignCluster.status.network.gateways.observedEndpoints, Tunnel.spec.gateways.observedEndpoints, tunnel/plan.maxObserved",
		"whom a peer sees":           "peering.MaxObservations, proto Network.observations, ForeignCluster.status.network.observations",
		"prefixes of a peer":         "peering.MaxPrefixes, proto Network.prefixes, ForeignCluster.status.network.prefixes, ForeignCluster.status.aliases, Tunnel.spec.remote, tunnel/plan.maxAliases",
		"prefixes of ours":           "peering.MaxPrefixes, proto Network.aliases, ForeignCluster.status.network.aliases, Tunnel.spec.local, tunnel/plan.maxPrefixes",
		"addresses of a peer":        "peering.MaxAddresses, ForeignCluster.status.network.addresses, internal/aliases.maxAddresses",
		"aliases of addresses":       "internal/aliases.maxAddresses, peering.MaxAddresses, tunnel/plan.maxAddresses",
		"blocks for a peer":          "internal/aliases.maxBlocks, ForeignCluster.status.aliasBlocks, Tunnel.spec.remoteAliasBlocks, peering.MaxBlocks, proto Network.alias_blocks, ForeignCluster.status.network.aliasBlocks, Tunnel.spec.localAliasBlocks",
		"addresses of a block":       "peering.MaxBlockAddresses, ForeignCluster.status.network.aliasBlocks.addresses, Tunnel.spec.localAliasBlocks.addresses",
		"third clusters":             "ForeignCluster.spec.transit.through, peering.MaxTransit, proto Network.through, ForeignCluster.status.network.through, proto Network.direct, ForeignCluster.status.network.direct, proto Network.opened, ForeignCluster.status.network.opened, proto Network.running, ForeignCluster.status.network.running",
		"namespaces of direct pods":  "peering.MaxDirectNamespaces, proto TransitAddresses.namespaces, ForeignCluster.status.network.transit.namespaces, Tunnel.spec.transit.namespaces",
		"clusters passed to":         "ForeignCluster.spec.transit.passTo, peering.MaxTransit, Tunnel.spec.transit, proto Network.transit, ForeignCluster.status.network.transit",
		"addresses passed to":        "peering.MaxAddresses, Tunnel.spec.transit.addresses, ForeignCluster.status.network.transit.addresses, internal/aliases.maxAddresses",
		"pods of a direct namespace": "peering.MaxDirect, Tunnel.spec.transit.namespaces.addresses, Tunnel.spec.transit.namespaces.podAddresses, ForeignCluster.status.network.transit.namespaces.addresses, ForeignCluster.status.network.transit.namespaces.podAddresses",
		"tolerations of a pool":      "internal/store.maxTolerations, PeeringPolicy.spec.pools.tolerations",
		"contracts":                  "internal/provider.MaxContractsPerPeer, peering.MaxContracts, proto PeerState.contracts, ForeignCluster.status.contracts, Tunnel.spec.contractEnds",
		"exposures":                  "internal/allow.MaxExposures, Tunnel.spec.allow, tunnel/plan.maxClasses",
		"sources":                    "internal/allow.MaxExposed, Tunnel.spec.allow.from, tunnel/plan.maxInbound",
		"destinations":               "internal/allow.MaxExposed, Tunnel.spec.allow.to, tunnel/plan.maxInbound",
		"addresses of destinations":  "internal/allow.MaxExposed, Tunnel.spec.allow.to.addresses",
		"ports of destinations":      "internal/allow.maxPorts, Tunnel.spec.allow.to.ports",
		"ports of hosts":             "ExternalHost.spec.ports, internal/allow.maxPorts",
		"clusters of hosts":          "ExternalHost.spec.clusters, internal/allow.maxHostClusters, ExternalHost.status.clusters",
		"addresses of all hosts":     "internal/allow.maxExternalHosts, peering.MaxAddresses",
		"pods' prefixes on a node":   "tunnel/plan.MaxNodePrefixes, FabricNode.status.podCIDRs",
		"peers of a node":            "tunnel/plan.MaxPeers, FabricNode.status.paths",
		"tunnels on demand":          "tunnel.directMost, internal/fabric.maxDirect, FabricNode.status.directPaths",
		"gateways seen":              "internal/fabric.maxObservedGateways, FabricNode.status.observedGateways",
		"problems of a node":         "internal/fabric.maxProblems, FabricNode.status.problems",
		"relays of a node":           "internal/fabric.maxRelays, FabricNode.status.relays",
		"problems with endpoints":    "internal/gateways.maxProblems, FabricNode.spec.endpointProblems",
		"prefixes of Services":       "internal/gateways.maxServiceCIDRs, FabricNode.spec.serviceCIDRs",
	} {
		before, sum := "", int64(0)
		for name := range strings.SplitSeq(chain, ", ") {
			value, err := limitValue(root, name)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				break
			}
			if value < sum {
				t.Errorf("%s: %s is %d and %s, which takes it, is %d", what, before, sum, name, value)
			}
			before, sum = name, value
		}
	}
}

// limitValue is the value of a limit.
func limitValue(root fs.FS, name string) (int64, error) {
	if field, ok := strings.CutPrefix(name, "proto "); ok {
		return protoLimit(root, field)
	}
	i := strings.LastIndex(name, "/")
	first, rest, _ := strings.Cut(name[i+1:], ".")
	if i < 0 && first[0] >= 'A' && first[0] <= 'Z' {
		return crdLimit(root, first, strings.Split(rest, "."))
	}
	return constant(root, name[:i+1]+first, rest)
}

// packageLimits returns the limits of a package.
func packageLimits(root fs.FS, dir string) (all []limitGroup, err error) {
	files, err := fs.ReadDir(root, dir)
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if !hasLimits(f.Name()) {
			continue
		}
		source, err := fs.ReadFile(root, path.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		groups, err := readLimits(path.Join(dir, f.Name()), source)
		if err != nil {
			return nil, err
		}
		all = append(all, groups...)
	}
	return all, nil
}

// constant is the value of a limit of a package, by its expression, in which only
// others of that package may be.
func constant(root fs.FS, dir, name string) (int64, error) {
	groups, err := packageLimits(root, dir)
	if err != nil {
		return 0, err
	}
	for _, g := range groups {
		for _, l := range g.limits {
			for i, n := range l.names {
				if n != "`"+name+"`" {
					continue
				}
				text := strings.Trim(l.values[i], "`")
				if text != "" && ast.IsExported(text) || token.IsIdentifier(text) {
					return constant(root, dir, text)
				}
				v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, text)
				if err != nil {
					return 0, fmt.Errorf("%s.%s: %w", dir, name, err)
				}
				return strconv.ParseInt(v.Value.ExactString(), 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("there is no %s among the limits of %s", name, dir)
}

var maxItems = regexp.MustCompile(`max_items(?::|\s*=)\s*(\d+)`)

// protoLimit is how many items a field of a message has.
func protoLimit(root fs.FS, name string) (int64, error) {
	message, field, _ := strings.Cut(name, ".")
	for _, file := range []string{"peering", "resources"} {
		source, err := fs.ReadFile(root, "proto/entente/v1/"+file+".proto")
		if err != nil {
			return 0, err
		}
		_, body, ok := strings.Cut(string(source), "\nmessage "+message+" {")
		if !ok {
			continue
		}
		body, _, _ = strings.Cut(body, "\n}\n")
		m := regexp.MustCompile(`(?s)\n  repeated \S+ ` + field + ` = \d+ (\[.*?\]);`).FindStringSubmatch(body)
		if m == nil {
			break
		}
		if n := maxItems.FindStringSubmatch(m[1]); n != nil {
			return strconv.ParseInt(n[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no proto says how many items %s has", name)
}

// crdLimit is how many items a list of a custom resource has.
func crdLimit(root fs.FS, kind string, at []string) (int64, error) {
	files, err := fs.Glob(root, "charts/entente/files/crds/*.yaml")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		source, err := fs.ReadFile(root, file)
		if err != nil {
			return 0, err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(source, &crd); err != nil {
			return 0, err
		}
		if crd.Spec.Names.Kind != kind {
			continue
		}
		p := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		for _, name := range at {
			if p.Items != nil {
				p = p.Items.Schema
			}
			next, ok := p.Properties[name]
			if !ok {
				return 0, fmt.Errorf("a %s has no %s", kind, strings.Join(at, "."))
			}
			p = &next
		}
		if p.MaxItems == nil {
			return 0, fmt.Errorf("%s.%s has no limit", kind, strings.Join(at, "."))
		}
		return *p.MaxItems, nil
	}
	return 0, fmt.Errorf("there is no kind %s", kind)
}

func TestALimitThatIsMissingIsNoticed(t *testing.T) {
	t.Parallel()
	root := os.DirFS("../..")
	for _, name := range []string{"peering.MaxNothing", "nowhere.Max", "proto Network.nothing", "proto Nothing.gateways", "Tunnel.spec.nothing", "Nothing.spec", "Tunnel.spec"} {
		if v, err := limitValue(root, name); err == nil {
			t.Errorf("%s is %d", name, v)
		}
	}
	for name, want := range map[string]int64{"peering.MaxObservations": 64, "tunnel/plan.maxAliases": 144, "tunnel/plan.maxInbound": 65536, "internal/allow.MaxExposed": 20000} {
		if v, err := limitValue(root, name); v != want || err != nil {
			t.Errorf("%s is %d, %v, want %d", name, v, err, want)
		}
	}
}
