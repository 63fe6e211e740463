package podprefixes

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// decoded is the prefixes in an object that others wrote, and what in it is malformed.
type decoded struct {
	prefixes []netip.Prefix
	// disabled is prefixes of which pods get no more addresses.
	disabled []netip.Prefix
	// elsewhere says that the network plugin gives pods no addresses of its own prefixes, but of Nodes' or of
	// the nodes' network.
	elsewhere bool
	problems  []string
}

// add reads prefixes.
func (d *decoded) add(texts ...string) { d.prefixes = d.appended(d.prefixes, texts) }

// appended appends prefixes to a list. What is not a prefix of unicast addresses is a problem.
func (d *decoded) appended(to []netip.Prefix, texts []string) []netip.Prefix {
	for _, text := range texts {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		switch {
		case err != nil || p.Addr().Is4In6():
			d.problem("%s is not a prefix", shown(text))
		case !unicast(p):
			d.problem("%v is not a prefix of pods", p)
		case len(to) == maxPrefixes:
			d.problem("there are more than %d prefixes", maxPrefixes)
			return to
		default:
			to = append(to, p.Masked())
		}
	}
	return to
}

func (d *decoded) problem(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); len(d.problems) < maxProblems && !slices.Contains(d.problems, text) {
		d.problems = append(d.problems, text)
	}
}

// unicast reports whether pods can have the addresses of a prefix: it is not all addresses, and no
// loopback, link-local or multicast addresses are in it.
func unicast(p netip.Prefix) bool {
	if p.Bits() == 0 {
		return false
	}
	for _, no := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "::/8", "fe80::/10", "ff00::/8"} {
		if netip.MustParsePrefix(no).Overlaps(p) {
			return false
		}
	}
	return true
}

// shown returns a text of others as it may be printed.
func shown(text string) string {
	if len(text) > maxShown {
		return fmt.Sprintf("%.*q…", maxShown, text)
	}
	return fmt.Sprintf("%q", text)
}

// listed splits a list of prefixes in a text, as cilium-config and kubeadm have them.
func (d *decoded) listed(text string) {
	if len(text) > maxText {
		d.problem("a list of prefixes has %d bytes, the limit is %d", len(text), maxText)
		return
	}
	d.add(strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' })...)
}

// field returns what is in an object under some names; nil if it is not there.
func field(o any, names ...string) any {
	for _, name := range names {
		m, ok := o.(map[string]any)
		if !ok {
			return nil
		}
		o = m[name]
	}
	return o
}

// texts returns the texts of a list: those of its items, or of the field cidr of each.
func (d *decoded) texts(list any) (out []string) {
	switch list := list.(type) {
	case nil:
	case []any:
		for _, item := range list {
			text, ok := item.(string)
			if !ok {
				text, ok = field(item, "cidr").(string)
			}
			if !ok {
				d.problem("an item of a list of prefixes is not a text")
				continue
			}
			out = append(out, text)
		}
	default:
		d.problem("a list of prefixes is not a list")
	}
	return out
}

// ipPool reads an IPPool of Calico: spec.cidr, with spec.disabled and spec.allowedUses. Pods have no
// addresses of a pool whose uses are others than Workload.
func ipPool(o map[string]any, d *decoded) {
	spec := field(o, "spec")
	uses, _ := field(spec, "allowedUses").([]any)
	if len(uses) > 0 && !slices.ContainsFunc(uses, func(use any) bool { return use == "Workload" }) {
		return
	}
	text, ok := field(spec, "cidr").(string)
	if !ok {
		d.problem("an IPPool has no spec.cidr")
		return
	}
	if off, _ := field(spec, "disabled").(bool); off {
		d.disabled = d.appended(d.disabled, []string{text})
		return
	}
	d.add(text)
}

// podIPPool reads a CiliumPodIPPool: spec.ipv4.cidrs and spec.ipv6.cidrs, which are texts in version
// v2alpha1 and objects with a field cidr since.
func podIPPool(o map[string]any, d *decoded) {
	for _, family := range []string{"ipv4", "ipv6"} {
		d.add(d.texts(field(o, "spec", family, "cidrs"))...)
	}
}

// ciliumNode reads a CiliumNode: spec.ipam.podCIDRs with the IPAM cluster-pool, and
// spec.ipam.pools.allocated with multi-pool.
func ciliumNode(o map[string]any, d *decoded) {
	d.add(d.texts(field(o, "spec", "ipam", "podCIDRs"))...)
	allocated, _ := field(o, "spec", "ipam", "pools", "allocated").([]any)
	for _, pool := range allocated {
		d.add(d.texts(field(pool, "cidrs"))...)
	}
}

// ciliumConfig reads the ConfigMap cilium-config. With the IPAM cluster-pool and multi-pool Cilium gives
// pods addresses of prefixes of its own.
func ciliumConfig(data map[string]string, d *decoded) {
	ipam := data["ipam"]
	pool := strings.HasPrefix(ipam, "cluster-pool")
	d.elsewhere = !pool && ipam != "multi-pool"
	if pool {
		d.listed(data["cluster-pool-ipv4-cidr"])
		d.listed(data["cluster-pool-ipv6-cidr"])
	}
}

// ovnSubnets reads the annotation k8s.ovn.org/node-subnets: a JSON object whose field default is the
// prefix of the node's pods, or a list of them.
func ovnSubnets(text string, d *decoded) {
	if text == "" {
		return
	}
	if len(text) > maxText {
		d.problem("annotation %s has %d bytes, the limit is %d", ovnAnnotation, len(text), maxText)
		return
	}
	var networks map[string]any
	if err := json.Unmarshal([]byte(text), &networks); err != nil {
		d.problem("annotation %s is not JSON of prefixes", ovnAnnotation)
		return
	}
	if one, ok := networks["default"].(string); ok {
		d.add(one)
		return
	}
	d.add(d.texts(networks["default"])...)
}

// kubeadmConfig reads networking.podSubnet of the ClusterConfiguration in ConfigMap kubeadm-config: a
// prefix, or one of each family, separated by a comma.
func kubeadmConfig(data map[string]string, d *decoded) {
	text := data["ClusterConfiguration"]
	if len(text) > maxText {
		d.problem("ClusterConfiguration has %d bytes, the limit is %d", len(text), maxText)
		return
	}
	var config struct {
		Networking struct {
			PodSubnet string `json:"podSubnet"`
		} `json:"networking"`
	}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		d.problem("ClusterConfiguration is not YAML with networking.podSubnet")
		return
	}
	d.listed(config.Networking.PodSubnet)
}
