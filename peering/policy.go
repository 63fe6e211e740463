package peering

import (
	"fmt"
	"maps"
	"strconv"
	"time"
)

// Ask is what a consumer asks for.
type Ask struct {
	// RequestID names the request for ever.
	RequestID string
	// Resources is what it asks for; empty means as much as the policy gives.
	Resources Resources
	// Duration is for how long; zero leaves it to the policy.
	Duration time.Duration
	// Network says that it wants a tunnel.
	Network bool
}

// Policy is what a provider lends to one peer.
type Policy struct {
	// Name is what to call the policy in messages.
	Name string
	// Accept says whether anything is lent at all.
	Accept bool
	// Ceilings is the most that the peer gets, by resource. A resource without one
	// is bounded by PercentOfFree alone.
	Ceilings Resources
	// PercentOfFree is the most that the peer gets of what is free, 0 to 100, of
	// each resource.
	PercentOfFree int
	// Duration is how long a contract lasts at most.
	Duration time.Duration
	// Network says that a tunnel may be had.
	Network     bool
	PodSecurity PodSecurity
	NodeLabels  map[string]string
}

// Capacity is what a provider has.
type Capacity struct {
	// Free is what its nodes have unrequested. What offloaded pods request counts
	// as free here: it is in Lent.
	Free Resources
	// Lent is what contracts and standing offers hold back, of all peers.
	Lent Resources
	// LentToPeer is the part of Lent that this peer holds.
	LentToPeer Resources
}

// Grant is what a provider offers.
type Grant struct {
	Resources   Resources
	Duration    time.Duration
	Network     bool
	PodSecurity PodSecurity
	NodeLabels  map[string]string
}

// GrantReason is why nothing is granted; reasons are part of the protocol.
type GrantReason string

// The reasons.
const (
	// GrantPolicyRefused: the policy gives less than was asked, or nothing.
	GrantPolicyRefused GrantReason = "POLICY_REFUSED"
	// GrantCapacityExhausted: the policy would give it, but it is not free now.
	GrantCapacityExhausted GrantReason = "CAPACITY_EXHAUSTED"
	// GrantInvalid: the request makes no sense.
	GrantInvalid GrantReason = "REQUEST_INVALID"
)

// GrantError says why nothing is granted.
type GrantError struct {
	Reason GrantReason
	// Resource is the one that it failed for; empty if for none in particular.
	Resource string
	Message  string
}

// Error implements error.
func (e *GrantError) Error() string { return e.Message }

// Decide decides what to lend: what was asked for, if every ceiling allows it,
// and else nothing, with a *GrantError. An ask that names no resources gets as
// much of each as the ceilings allow. Resources other than cpu come in whole
// units.
func Decide(ask Ask, p Policy, have Capacity) (Grant, error) {
	if !p.Accept {
		return Grant{}, &GrantError{Reason: GrantPolicyRefused, Message: fmt.Sprintf("policy %q lends nothing to this peer", p.Name)}
	}
	if err := checkAsk(ask); err != nil {
		return Grant{}, err
	}
	if ask.Network && !p.Network {
		return Grant{}, &GrantError{Reason: GrantPolicyRefused, Message: fmt.Sprintf("policy %q allows no tunnel", p.Name)}
	}
	g := Grant{
		Duration:    p.Duration,
		Network:     ask.Network,
		PodSecurity: p.PodSecurity,
		NodeLabels:  maps.Clone(p.NodeLabels),
	}
	if ask.Duration > 0 && (p.Duration <= 0 || ask.Duration < p.Duration) {
		g.Duration = ask.Duration
	}
	if g.Duration = min(g.Duration, MaxContractLife).Truncate(time.Second); g.Duration < time.Second {
		return Grant{}, &GrantError{Reason: GrantInvalid, Message: "neither the request nor the policy says for how long"}
	}
	var err error
	if len(ask.Resources) == 0 {
		g.Resources, err = grantAll(p, have)
	} else {
		g.Resources, err = grantAsked(ask, p, have)
	}
	if err != nil {
		return Grant{}, err
	}
	return g, nil
}

func checkAsk(ask Ask) error {
	invalid := func(format string, args ...any) error {
		return &GrantError{Reason: GrantInvalid, Message: fmt.Sprintf(format, args...)}
	}
	if err := checkRequestID(ask.RequestID); err != nil {
		return invalid("%v", err)
	}
	if len(ask.Resources) > MaxResources {
		return invalid("%d resources, more than %d", len(ask.Resources), MaxResources)
	}
	if ask.Duration < 0 {
		return invalid("duration is below zero")
	}
	for _, name := range ask.Resources.Names() {
		if err := checkResourceName(name); err != nil {
			return invalid("%v", err)
		}
		if !Fractional(name) && !ask.Resources[name].IsWhole() {
			return &GrantError{Reason: GrantInvalid, Resource: name, Message: fmt.Sprintf("%s %s is not a whole number", name, ask.Resources[name])}
		}
	}
	return nil
}

// headroom is what a policy still gives a peer of one resource, and what of
// that is free now.
func headroom(name string, p Policy, have Capacity) (byPolicy, now Quantity) {
	byPolicy = have.Free[name].Percent(p.PercentOfFree)
	if ceiling, ok := p.Ceilings[name]; ok {
		byPolicy = byPolicy.Min(ceiling)
	}
	byPolicy = byPolicy.Sub(have.LentToPeer[name])
	now = byPolicy.Min(have.Free[name].Sub(have.Lent[name]))
	if !Fractional(name) {
		byPolicy, now = byPolicy.Floor(), now.Floor()
	}
	return byPolicy, now
}

func grantAsked(ask Ask, p Policy, have Capacity) (Resources, error) {
	got := make(Resources, len(ask.Resources))
	for _, name := range ask.Resources.Names() {
		want := ask.Resources[name]
		byPolicy, now := headroom(name, p, have)
		if ceiling, ok := p.Ceilings[name]; ok && want.Cmp(ceiling.Sub(have.LentToPeer[name])) > 0 {
			return nil, &GrantError{Reason: GrantPolicyRefused, Resource: name, Message: fmt.Sprintf(
				"%s: asked for %s, policy %q gives this peer at most %s, of which it holds %s",
				name, want, p.Name, ceiling, have.LentToPeer[name])}
		}
		if want.Cmp(byPolicy) > 0 {
			return nil, &GrantError{Reason: GrantCapacityExhausted, Resource: name, Message: fmt.Sprintf(
				"%s: asked for %s, policy %q gives this peer %d%% of what is free, which is %s more now",
				name, want, p.Name, p.PercentOfFree, byPolicy)}
		}
		if want.Cmp(now) > 0 {
			return nil, &GrantError{Reason: GrantCapacityExhausted, Resource: name, Message: fmt.Sprintf(
				"%s: asked for %s, only %s is free", name, want, now)}
		}
		got[name] = want
	}
	return got, nil
}

// grantAll gives of every resource that is free as much as it may. What comes to
// nothing is left out.
func grantAll(p Policy, have Capacity) (Resources, error) {
	got := Resources{}
	for _, name := range have.Free.Names() {
		if checkResourceName(name) != nil || len(got) == MaxResources {
			continue
		}
		if _, now := headroom(name, p, have); !now.IsZero() {
			got[name] = round(name, now)
		}
	}
	// Without one of these no pod can run, so there is nothing to offer.
	for _, name := range []string{"cpu", "memory", "pods"} {
		if _, offered := have.Free[name]; offered && got[name].IsZero() {
			return nil, &GrantError{Reason: GrantCapacityExhausted, Resource: name, Message: fmt.Sprintf(
				"%s: nothing is left to lend under policy %q", name, p.Name)}
		}
	}
	if len(got) == 0 {
		return nil, &GrantError{Reason: GrantCapacityExhausted, Message: fmt.Sprintf("nothing is left to lend under policy %q", p.Name)}
	}
	return got, nil
}

// round rounds an amount of bytes down to whole mebibytes, since a person reads
// it. What is less than one stays as it is.
func round(name string, q Quantity) Quantity {
	const mebi = 1 << 20
	if name != "memory" && name != "ephemeral-storage" || q.Units() < mebi {
		return q
	}
	whole, err := ParseQuantity(strconv.FormatInt(q.Units()/mebi, 10) + "Mi")
	if err != nil {
		return q // cannot be: it is a number of mebibytes
	}
	return whole
}
