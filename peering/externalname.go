package peering

import (
	"fmt"
	"strings"
)

// CheckExternalName returns why a Service of another cluster may not have an external name: it is
// not a DNS name in lower case with at least two labels (RFC 1123) and no dot at its end; or it
// means something else on each machine, as an address and localhost do; or it is short for a name
// of whichever cluster resolves it. The consumer's resolver decides to which cluster a name such
// as db.shop.svc.cluster.local belongs.
func CheckExternalName(name string) error {
	if name == "" || len(name) > MaxExternalNameLen {
		return fmt.Errorf("external name of %d bytes: it has 1 to %d", len(name), MaxExternalNameLen)
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || len(l) > maxDNSLabel || !isLabel(lower+digits, l) {
			return fmt.Errorf("external name %q: %q is not a label of DNS: 1 to %d lower case letters, digits and dashes, the first and last not a dash", name, l, maxDNSLabel)
		}
	}
	last := labels[len(labels)-1]
	switch {
	case len(labels) == 1:
		return fmt.Errorf("external name %q has one label, which means another thing in each network: write the whole name", name)
	case isNumber(last):
		return fmt.Errorf("external name %q reads as an address: use a Service without selector, and EndpointSlices", name)
	case last == "svc":
		return fmt.Errorf("external name %q is short for a name of whichever cluster resolves it: write the whole name, with the cluster's domain", name)
	case last == "localhost" || last == "arpa":
		return fmt.Errorf("external name %q: names below %s mean another thing on each machine", name, last)
	}
	return nil
}

// maxDNSLabel is the longest label of a name of DNS (RFC 1035).
const maxDNSLabel = 63

// isNumber reports whether programs that follow inet_aton or the URL standard read a name with
// this last label as an IPv4 address, such as 127.1 and 10.0.0.0x1.
func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return only(digits+"abcdef", hex)
	}
	return only(digits, label)
}
