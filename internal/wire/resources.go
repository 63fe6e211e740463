package wire

import (
	"time"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// Advertisement is what a provider offers for an ask.
type Advertisement struct {
	// ContractID names the advertisement and the contract that may follow.
	ContractID string
	// RequestID is that of the ask.
	RequestID string
	// ValidUntil is when the offer lapses unless it was signed.
	ValidUntil time.Time
	// Grant is what is offered.
	Grant peering.Grant
}

// ResourcesTo writes amounts.
func ResourcesTo(r peering.Resources) *ententev1.ResourceList {
	return &ententev1.ResourceList{Amounts: r.Strings()}
}

// ResourcesFrom reads amounts. A missing list is an empty one.
func ResourcesFrom(field string, m *ententev1.ResourceList) (peering.Resources, error) {
	r, err := peering.ParseResources(m.GetAmounts())
	if err != nil {
		return nil, invalid(field, "%s", Text(err.Error(), MaxMessageLen))
	}
	return r, nil
}

// AskTo writes an ask.
func AskTo(a peering.Ask) *ententev1.PeeringRequest {
	return &ententev1.PeeringRequest{
		RequestId: a.RequestID,
		Resources: ResourcesTo(a.Resources),
		Duration:  writeDuration(a.Duration),
		Network:   a.Network,
	}
}

// AskFrom reads an ask.
func AskFrom(m *ententev1.PeeringRequest) (peering.Ask, error) {
	if m == nil {
		return peering.Ask{}, invalid("request", "is required")
	}
	if err := checkID("request.request_id", m.GetRequestId()); err != nil {
		return peering.Ask{}, err
	}
	a := peering.Ask{RequestID: m.GetRequestId(), Network: m.GetNetwork()}
	var err error
	if a.Resources, err = ResourcesFrom("request.resources", m.GetResources()); err != nil {
		return peering.Ask{}, err
	}
	if a.Duration, err = readDuration("request.duration", m.GetDuration()); err != nil {
		return peering.Ask{}, err
	}
	return a, nil
}

// AdvertisementTo writes an advertisement.
func AdvertisementTo(a Advertisement) *ententev1.Advertisement {
	return &ententev1.Advertisement{
		ContractId:  a.ContractID,
		RequestId:   a.RequestID,
		Resources:   ResourcesTo(a.Grant.Resources),
		Duration:    writeDuration(a.Grant.Duration),
		ValidUntil:  writeTime(a.ValidUntil),
		NodeLabels:  a.Grant.NodeLabels,
		Network:     a.Grant.Network,
		PodSecurity: string(a.Grant.PodSecurity),
	}
}

// AdvertisementFrom reads an advertisement.
func AdvertisementFrom(m *ententev1.Advertisement) (Advertisement, error) {
	if m == nil {
		return Advertisement{}, invalid("advertisement", "is required")
	}
	if err := peering.CheckContractID(m.GetContractId()); err != nil {
		return Advertisement{}, invalid("advertisement.contract_id", "%s", err)
	}
	if err := checkID("advertisement.request_id", m.GetRequestId()); err != nil {
		return Advertisement{}, err
	}
	a := Advertisement{ContractID: m.GetContractId(), RequestID: m.GetRequestId()}
	a.Grant.Network = m.GetNetwork()
	var err error
	if a.Grant.Resources, err = ResourcesFrom("advertisement.resources", m.GetResources()); err != nil {
		return Advertisement{}, err
	}
	if len(a.Grant.Resources) == 0 {
		return Advertisement{}, invalid("advertisement.resources", "offers nothing")
	}
	if a.Grant.Duration, err = readDuration("advertisement.duration", m.GetDuration()); err != nil {
		return Advertisement{}, err
	}
	if a.Grant.Duration == 0 {
		return Advertisement{}, invalid("advertisement.duration", "is required")
	}
	if a.ValidUntil, err = readTime("advertisement.valid_until", m.GetValidUntil()); err != nil {
		return Advertisement{}, err
	}
	if a.ValidUntil.IsZero() {
		return Advertisement{}, invalid("advertisement.valid_until", "is required")
	}
	if err := peering.CheckNodeLabels(m.GetNodeLabels()); err != nil {
		return Advertisement{}, invalid("advertisement.node_labels", "%s", Text(err.Error(), MaxMessageLen))
	}
	if len(m.GetNodeLabels()) > 0 {
		a.Grant.NodeLabels = m.GetNodeLabels()
	}
	switch level := peering.PodSecurity(m.GetPodSecurity()); level {
	case peering.PodSecurityPrivileged, peering.PodSecurityBaseline, peering.PodSecurityRestricted:
		a.Grant.PodSecurity = level
	default:
		return Advertisement{}, invalid("advertisement.pod_security", "want privileged, baseline or restricted")
	}
	return a, nil
}

// EnvelopeTo writes an envelope.
func EnvelopeTo(e peering.Envelope) *ententev1.Envelope {
	m := &ententev1.Envelope{Payload: e.Payload, PayloadType: e.PayloadType}
	for _, s := range e.Signatures {
		m.Signatures = append(m.Signatures, &ententev1.Signature{KeyId: string(s.KeyID), Sig: s.Sig})
	}
	return m
}

// EnvelopeFrom reads an envelope. It checks sizes and the form of the signers'
// IDs; whether the signatures hold is for Envelope.Verify. The envelope shares
// its bytes with the message.
func EnvelopeFrom(m *ententev1.Envelope) (peering.Envelope, error) {
	if n := len(m.GetPayload()); n == 0 || n > peering.MaxPayload {
		return peering.Envelope{}, invalid("envelope.payload", "has %d bytes, want 1 to %d", n, peering.MaxPayload)
	}
	if n := len(m.GetPayloadType()); n == 0 || n > peering.MaxPayloadTypeLen {
		return peering.Envelope{}, invalid("envelope.payload_type", "want 1 to %d characters", peering.MaxPayloadTypeLen)
	}
	if len(m.GetSignatures()) > peering.MaxSignatures {
		return peering.Envelope{}, invalid("envelope.signatures", "want at most %d", peering.MaxSignatures)
	}
	e := peering.Envelope{Payload: m.GetPayload(), PayloadType: m.GetPayloadType()}
	for i, s := range m.GetSignatures() {
		id, err := peering.ParseClusterID(s.GetKeyId())
		if err != nil {
			return peering.Envelope{}, invalid(index("envelope.signatures", i)+".key_id", "%s", err)
		}
		if n := len(s.GetSig()); n == 0 || n > peering.MaxSignatureLen {
			return peering.Envelope{}, invalid(index("envelope.signatures", i)+".sig", "has %d bytes, want 1 to %d", n, peering.MaxSignatureLen)
		}
		e.Signatures = append(e.Signatures, peering.Signature{KeyID: id, Sig: s.GetSig()})
	}
	return e, nil
}
