// Package discovery finds clusters, and lets them be found: on a LAN by mDNS
// (RFC 6762, package mdns), in a domain by unicast DNS (package dnssd), both as
// services of DNS-SD (RFC 6763).
//
// Whatever is found is a hint: nothing on a LAN or in a domain proves who says it.
// What holds is proven when two clusters join.
package discovery

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/entente-dev/entente/peering"
)

const (
	// ServiceType is the type of a peering agent's service (RFC 6763 section 7).
	ServiceType = "_entente._tcp"
	// SubtypeAutomatic is the subtype (section 7.1) of those that peer with whom their
	// policy names without being asked.
	SubtypeAutomatic = "_automatic"

	// textVersion is the version of the keys in a TXT record (section 6.7).
	textVersion = "1"

	// MaxLabel is the most bytes of an instance's name, a DNS label.
	MaxLabel = 63
	// MaxText is the most bytes of a TXT record that is read: section 6.2 wants 1300
	// at most, for a packet.
	MaxText = 1300
	// MaxTextStrings is the most strings of a TXT record that are read.
	MaxTextStrings = 32
	// maxValue is the most bytes that are kept of a value that has no form of its own.
	maxValue = 64
	// MaxAddresses is the most addresses of an instance.
	MaxAddresses = peering.MaxEndpoints
)

// A Service is what a cluster publishes of itself. Its records are made by rebuild in
// mdns/claim.go and by dnssd.Records; a new key of the TXT record belongs in [Text], and, to
// get to a LAN, in v1alpha1.PublishedCluster.
type Service struct {
	// Instance is the name that people see, 1 to [MaxLabel] bytes of UTF-8. Who finds it
	// taken by another changes it: see [Rename].
	Instance string
	// Host is the first label of the host name that Addresses belong to.
	Host string
	// Port is where the peering agent answers.
	Port uint16
	// Addresses are where the host is. None: where it is published.
	Addresses []netip.Addr
	Text      Text
	// Automatic publishes it under [SubtypeAutomatic] too.
	Automatic bool
}

// A Found is what somebody says of a cluster.
type Found struct {
	// Instance is the name that it was found under, without type and domain.
	Instance string
	Text
	Automatic bool
	// Endpoints are host:port, at most [peering.MaxEndpoints], each as
	// [peering.CheckEndpoint] wants it.
	Endpoints []string
	// Where is the network interface or the domain that it was found on.
	Where string
	// From is the addresses from which a LAN was told where the instance is, in order: the
	// sources of packets, which whoever is on the link can choose. A domain has none.
	From []netip.Addr
	// Seen is when it was said last, and Until is when it is forgotten, if it is not
	// said again.
	Seen, Until time.Time
}

// Text is what the TXT record of an instance says (RFC 6763 section 6).
type Text struct {
	// ID is who it claims to be.
	ID peering.ClusterID
	// Name is what the cluster calls itself; it may be empty.
	Name string
	// API is the range of protocol revisions that it speaks, as "1-2".
	API string
	// Fingerprint is the beginning of the SHA-256 of its trust bundle in hexadecimal;
	// it may be empty. Who knows another bundle of that cluster knows that one of the
	// two is old, or not theirs.
	Fingerprint string
}

// The keys of a TXT record. Keys without meaning here are left alone: who comes
// later may add some.
const (
	keyVersion     = "txtvers"
	keyID          = "id"
	keyName        = "name"
	keyAPI         = "api"
	keyFingerprint = "fp"
)

// Strings returns the strings of the TXT record, "txtvers" first (section 6.7).
func (t Text) Strings() []string {
	out := []string{keyVersion + "=" + textVersion, keyID + "=" + string(t.ID)}
	for _, kv := range [][2]string{{keyName, t.Name}, {keyAPI, t.API}, {keyFingerprint, t.Fingerprint}} {
		if kv[1] != "" {
			out = append(out, kv[0]+"="+peering.Text(kv[1], maxValue))
		}
	}
	return out
}

// ParseText reads the strings of a TXT record. It fails for what is no cluster of a
// version that this one understands; texts are cut and made fit to be shown.
func ParseText(list []string) (Text, error) {
	values, err := textValues(list)
	if err != nil {
		return Text{}, err
	}
	if v, ok := values[keyVersion]; ok && v != textVersion {
		return Text{}, fmt.Errorf("TXT record of version %q, want %q", peering.Text(v, maxValue), textVersion)
	}
	id, err := peering.ParseClusterID(values[keyID])
	if err != nil {
		return Text{}, fmt.Errorf("TXT record: %w", err)
	}
	t := Text{ID: id}
	for key, to := range map[string]*string{keyName: &t.Name, keyAPI: &t.API, keyFingerprint: &t.Fingerprint} {
		*to = strings.TrimSpace(peering.Text(values[key], maxValue))
	}
	return t, nil
}

// textValues returns the values of the keys, in lower case: keys do not depend on
// case, and the first of those that are the same counts (section 6.4). Keys without
// a value are left out, as is what has no key.
func textValues(list []string) (map[string]string, error) {
	if len(list) > MaxTextStrings {
		return nil, fmt.Errorf("TXT record of %d strings, more than %d", len(list), MaxTextStrings)
	}
	values, size := map[string]string{}, 0
	for _, s := range list {
		if size += len(s) + 1; size > MaxText {
			return nil, fmt.Errorf("TXT record of more than %d bytes", MaxText)
		}
		key, value, ok := strings.Cut(s, "=")
		if key = strings.ToLower(key); !ok || key == "" {
			continue
		}
		if _, twice := values[key]; !twice {
			values[key] = value
		}
	}
	return values, nil
}

// Check says what of a service cannot be published.
func (s Service) Check() error {
	switch {
	case s.Instance == "" || len(s.Instance) > MaxLabel:
		return fmt.Errorf("the instance's name has %d bytes, want 1 to %d", len(s.Instance), MaxLabel)
	case peering.Text(s.Instance, MaxLabel) != s.Instance:
		return errors.New("the instance's name has characters that cannot be shown")
	case peering.CheckEndpoint(s.Host+":1") != nil || strings.Contains(s.Host, "."):
		return fmt.Errorf("host %q is not a DNS label", s.Host)
	case s.Port == 0:
		return errors.New("no port")
	case len(s.Addresses) > MaxAddresses:
		return fmt.Errorf("%d addresses, more than %d", len(s.Addresses), MaxAddresses)
	case slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return !a.IsValid() || a.IsUnspecified() || a.IsMulticast() }):
		return errors.New("invalid address")
	}
	_, err := ParseText(s.Text.Strings())
	return err
}

// Rename returns the name that comes after one that another holds: "office" becomes
// "office (2)", and that "office (3)" (RFC 6763 appendix D), within [MaxLabel] bytes.
func Rename(name string) string {
	base, n := numbered(name, " (", ")")
	suffix := fmt.Sprintf(" (%d)", n+1)
	return peering.Text(base, MaxLabel-len(suffix)) + suffix
}

// RenameHost is the same for the label of a host: "office" becomes "office-2".
func RenameHost(label string) string {
	base, n := numbered(label, "-", "")
	suffix := fmt.Sprintf("-%d", n+1)
	return strings.TrimRight(base[:min(len(base), MaxLabel-len(suffix))], "-") + suffix
}

// numbered takes the number off a name; one without is the first.
func numbered(name, before, after string) (base string, n int) {
	if at := strings.LastIndex(name, before); at > 0 {
		text, ok := strings.CutSuffix(name[at+len(before):], after)
		n, err := strconv.Atoi(text)
		if ok && err == nil && n > 1 && n < 1<<20 && strconv.Itoa(n) == text {
			return name[:at], n
		}
	}
	return name, 1
}
