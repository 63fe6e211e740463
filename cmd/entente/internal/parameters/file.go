// Package parameters reads and writes the file by which the administrators of two clusters set up
// an in-band tunnel: one cluster's administrator prints it and the other's applies it. It is the
// manifest of a ForeignCluster, so kubectl accepts it as well. There is no secret in it.
package parameters

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
)

// MaxFile is the maximum size of a file, in bytes: sixteen gateways take a quarter of it.
const MaxFile = 64 << 10

const kind = "ForeignCluster"

// file is a ForeignCluster, reduced to the fields of parameters.
type file struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`
}

type metadata struct {
	Name string `json:"name"`
}

type spec struct {
	ClusterID string            `json:"clusterID"`
	Decision  v1alpha1.Decision `json:"decision"`
	InBand    *v1alpha1.InBand  `json:"inBand"`
}

// Encode returns the file of a cluster.
func Encode(p *ententev1.NetworkParameters) ([]byte, error) {
	name := cmp.Or(p.GetDisplayName(), "peer-"+peering.ClusterID(p.GetClusterId()).Short())
	f := file{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Metadata: metadata{name},
		Spec: spec{ClusterID: p.GetClusterId(), Decision: v1alpha1.DecisionApproved, InBand: &v1alpha1.InBand{ExchangeKey: base64.StdEncoding.EncodeToString(p.GetExchangeKey())}},
	}
	for _, g := range p.GetGateways() {
		f.Spec.InBand.Gateways = append(f.Spec.InBand.Gateways, v1alpha1.InBandGateway{
			Name: g.GetName(), PublicKey: base64.StdEncoding.EncodeToString(g.GetPublicKey()), Endpoints: g.GetEndpoints(),
		})
	}
	text, err := yaml.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("write parameters: %w", err)
	}
	head := fmt.Sprintf(`# How to reach cluster %s
# (%s) in-band: give this file to the administrator of the
# other cluster. It contains no secret, but must not change on the way: compare the ID over
# a channel that you both trust, such as the phone, and then apply the file there with
# "entente network connect --in-band -f FILE", or with kubectl.
`, name, p.GetClusterId())
	return append([]byte(head), text...), nil
}

// Decode reads a file. It accepts only what Encode writes, in any order.
func Decode(text []byte) (*ententev1.NetworkParameters, error) {
	if len(text) > MaxFile {
		return nil, fmt.Errorf("it is larger than %d bytes", MaxFile)
	}
	if err := oneDocument(string(text)); err != nil {
		return nil, err
	}
	var f file
	if err := yaml.UnmarshalStrict(text, &f); err != nil {
		return nil, fmt.Errorf("it is not what `entente network parameters` prints: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	switch {
	case f.Kind != kind:
		return nil, fmt.Errorf("it is of kind %q, not %s", f.Kind, kind)
	case f.APIVersion != v1alpha1.GroupVersion.String():
		return nil, fmt.Errorf("it is of version %q, and this program reads %s: use the same version of Entente on both sides", f.APIVersion, v1alpha1.GroupVersion)
	case f.Spec.InBand == nil:
		return nil, errors.New("spec.inBand is missing: it does not say how the cluster is reached")
	case f.Spec.Decision != v1alpha1.DecisionApproved:
		return nil, fmt.Errorf("spec.decision is %q, not %s", f.Spec.Decision, v1alpha1.DecisionApproved)
	}
	return checked(f)
}

// checked returns the parameters of a file if they can be used.
func checked(f file) (*ententev1.NetworkParameters, error) {
	p := inband.Parameters{ID: peering.ClusterID(f.Spec.ClusterID), Name: f.Metadata.Name}
	if !isName(p.Name) {
		return nil, fmt.Errorf("metadata.name %q is not the name of a cluster", peering.Text(p.Name, peering.MaxNameLen))
	}
	var err error
	if p.ExchangeKey, err = key("spec.inBand.exchangeKey", f.Spec.InBand.ExchangeKey); err != nil {
		return nil, err
	}
	out := &ententev1.NetworkParameters{ClusterId: f.Spec.ClusterID, DisplayName: p.Name, ExchangeKey: p.ExchangeKey[:]}
	for i, g := range f.Spec.InBand.Gateways {
		public, err := key(fmt.Sprintf("spec.inBand.gateways[%d].publicKey", i), g.PublicKey)
		if err != nil {
			return nil, err
		}
		p.Gateways = append(p.Gateways, peering.Gateway{Name: g.Name, PublicKey: public, Endpoints: g.Endpoints})
		out.Gateways = append(out.Gateways, &ententev1.InBandGateway{Name: g.Name, PublicKey: public[:], Endpoints: g.Endpoints})
	}
	if err := p.Check(); err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	return out, nil
}

// oneDocument refuses a second document, which a reader of YAML would ignore.
func oneDocument(text string) error {
	content := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case (line == "---" || strings.HasPrefix(line, "--- ") || line == "...") && content:
			return errors.New("it has more than one document")
		case line != "" && !strings.HasPrefix(line, "#") && line != "---":
			content = true
		}
	}
	return nil
}

func key(field, text string) (out [32]byte, err error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != len(out) {
		return out, fmt.Errorf("%s is not a public key, which has %d bytes, base64", field, len(out))
	}
	return [32]byte(b), nil
}

func isName(s string) bool {
	if s == "" || len(s) > peering.MaxNameLen || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }) < 0
}
