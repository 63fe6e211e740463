// Package inband has what two clusters whose agents do not reach each other need for a tunnel:
// the parameters that their administrators exchange, and the preshared keys that follow from
// them.
package inband

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/entente-dev/entente/peering"
)

// Parameters are what a cluster's administrator sends to another's for an in-band tunnel between
// the two. They have no secret, and the ID of the cluster to which they belong.
type Parameters struct {
	// ID is the cluster's ID, Name its own name.
	ID   peering.ClusterID
	Name string
	// ExchangeKey is its public key for the tunnels' preshared keys.
	ExchangeKey [32]byte
	// Gateways are its nodes with WireGuard. Their overlay addresses follow from their names, and
	// are not set.
	Gateways []peering.Gateway
}

// Check returns what is wrong with the parameters, if anything.
func (p Parameters) Check() error {
	switch {
	case len(p.Gateways) == 0:
		return errors.New("there are no gateways")
	case len(p.Gateways) > peering.MaxInBandGateways:
		return fmt.Errorf("%d gateways, more than %d", len(p.Gateways), peering.MaxInBandGateways)
	case p.ExchangeKey == [32]byte{}:
		return errors.New("there is no exchange key")
	}
	if _, err := peering.ParseClusterID(string(p.ID)); err != nil {
		return err
	}
	names, keys := map[string]bool{}, map[[32]byte]bool{}
	for _, g := range p.Gateways {
		switch {
		case g.Name == "" || len(g.Name) > peering.MaxNodeNameLen:
			return fmt.Errorf("a gateway's name has %d characters, not 1 to %d", len(g.Name), peering.MaxNodeNameLen)
		case g.PublicKey == [32]byte{}:
			return fmt.Errorf("gateway %s has no public key", g.Name)
		case names[g.Name] || keys[g.PublicKey]:
			return fmt.Errorf("gateway %s, or its public key, is there twice", g.Name)
		}
		if err := peering.CheckEndpoints(g.Endpoints); err != nil {
			return fmt.Errorf("gateway %s: %w", g.Name, err)
		}
		names[g.Name], keys[g.PublicKey] = true, true
	}
	return nil
}

// Exchange derives the preshared keys of in-band tunnels: those of two clusters that have
// each other's public key are the same.
type Exchange struct {
	self    peering.ClusterID
	private *ecdh.PrivateKey
}

// NewExchange returns a cluster's exchange, the same for the same secret.
func NewExchange(self peering.ClusterID, secret []byte) (*Exchange, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, "entente in-band exchange v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the exchange key: %w", err)
	}
	private, err := ecdh.X25519().NewPrivateKey(seed)
	if err != nil {
		return nil, fmt.Errorf("derive the exchange key: %w", err)
	}
	return &Exchange{self: self, private: private}, nil
}

// Public is the key that peers need.
func (e *Exchange) Public() [32]byte { return [32]byte(e.private.PublicKey().Bytes()) }

// PresharedKey is the key of the tunnel to a peer. It can only be derived with the secret of one
// of the two.
func (e *Exchange) PresharedKey(peer peering.ClusterID, theirs [32]byte) ([32]byte, error) {
	var out [32]byte
	public, err := ecdh.X25519().NewPublicKey(theirs[:])
	if err != nil {
		return out, fmt.Errorf("exchange key of %s: %w", peer, err)
	}
	shared, err := e.private.ECDH(public)
	if err != nil {
		return out, fmt.Errorf("exchange key of %s: it is of low order", peer)
	}
	low, high := min(e.self, peer), max(e.self, peer)
	key, err := hkdf.Key(sha256.New, shared, nil, "entente in-band preshared key v1 "+string(low)+" "+string(high), len(out))
	if err != nil {
		return out, fmt.Errorf("derive the key of the tunnel to %s: %w", peer, err)
	}
	return [32]byte(key), nil
}
