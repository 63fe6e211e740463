package peering

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"time"
)

// Ask is what a consumer asks for.
type Ask struct {
	// RequestID identifies the request for ever.
	RequestID string
	// ContractID is the contract whose next revision is asked for; empty asks for a
	// new one.
	ContractID string
	// Resources are the amounts; empty means as much as the policy allows.
	Resources Resources
	// Duration is the term; zero means that of the policy.
	Duration time.Duration
	// Network means that it asks for a tunnel.
	Network bool
	// PriceCeiling is the most that the whole may cost an hour; the zero Money accepts any price.
	PriceCeiling Money
	// Pool is the pool of the provider's nodes that it asks for, if any.
	Pool string
	// NodeSelector are labels that the provider's nodes must have.
	NodeSelector map[string]string
	// StorageClasses are those that the provider must have, sorted.
	StorageClasses []string
	// RuntimeClasses are those that the provider must have and pods may then name,
	// sorted.
	RuntimeClasses []string
}

// Acceptance is whether a policy grants requests.
type Acceptance uint8

// The values of Acceptance.
const (
	// Never offers nothing.
	Never Acceptance = iota
	// AfterApproval offers once an administrator approved the request.
	AfterApproval
	// Automatic offers what the policy allows.
	Automatic
)

// Policy is what a provider offers one peer.
type Policy struct {
	// Name is the policy's name, for messages.
	Name string
	// Accept is whether anything is offered at all.
	Accept Acceptance
	// Approved means that an administrator approved this request.
	Approved bool
	// Ceilings is the most that the peer gets, by resource. A resource without one
	// is bounded by the percentages alone.
	Ceilings Resources
	// PercentOfFree is the most that the peer gets of what is free, 0 to 100, of
	// each resource.
	PercentOfFree int
	// Total is the most that all peers together get that the policy selects, by
	// resource.
	Total Resources
	// TotalPercent is the most that they get of what is free, 0 to 100, of each
	// resource.
	TotalPercent int
	// OvercommitPercent is how much counts as free, in percent of what is: 100 is
	// what is free, 0 nothing, more than MaxOvercommit as much as that.
	OvercommitPercent int
	// Duration is the longest term of a contract.
	Duration time.Duration
	// Network means that a tunnel is allowed, and Exports that Services may be imported through
	// it.
	Network     bool
	Exports     bool
	PodSecurity PodSecurity
	NodeLabels  map[string]string
	// Price is what use costs.
	Price PriceList
	// Renewable means that contracts are renewed.
	Renewable bool
	// Notice is how long pods may run on when this side ends a contract early.
	Notice time.Duration
	// StatementPeriod is how long each statement of use covers; zero means that no statements are
	// made.
	StatementPeriod time.Duration
	// RuntimeClasses and StorageClasses are those that peers may have.
	RuntimeClasses []string
	StorageClasses []string
	// NodeSelectorKeys are the labels by which peers may choose nodes.
	NodeSelectorKeys []string
	// Nodes are labels of the nodes to which the limits apply, those of a pool; empty means all nodes.
	// OvercommitBeyond is OvercommitPercent for nodes of which these are some.
	Nodes            map[string]string
	OvercommitBeyond int
	// LimitRange has the defaults and bounds of containers of the peer's pods.
	LimitRange LimitRange
}

// Capacity is what a provider has.
type Capacity struct {
	// Free is what is not requested on its nodes with the labels that are asked for. Requests of
	// offloaded pods count as free here: they are in Reserved.
	Free Resources
	// Reserved is what contracts grant and unsigned advertisements promise, of all peers.
	Reserved Resources
	// ReservedByPolicy is the part of Reserved for peers that the policy selects.
	ReservedByPolicy Resources
	// ReservedForPeer is the part of ReservedByPolicy for this peer.
	ReservedForPeer Resources
	// RuntimeClasses and StorageClasses are those that the cluster has.
	RuntimeClasses []string
	StorageClasses []string
}

// Without returns the capacity without amounts that are reserved for this peer: to
// decide on the next revision of the contract that grants them.
func (c Capacity) Without(amounts Resources) Capacity {
	c.Reserved, c.ReservedByPolicy, c.ReservedForPeer = c.Reserved.Sub(amounts), c.ReservedByPolicy.Sub(amounts), c.ReservedForPeer.Sub(amounts)
	return c
}

// Grant is what a provider offers.
type Grant struct {
	Clauses
	// Duration is the term.
	Duration time.Duration
	// StorageClasses are those that were asked for. They are not part of a contract.
	StorageClasses []string
}

// Decide decides what to grant: what was asked for if every ceiling allows it, and otherwise
// nothing, with an *Error. An ask that names no resources gets as much of each as the ceilings
// allow, or nothing if that costs more than its price ceiling. Every grant has a number of pods:
// an ask that names resources but no pods gets pods in proportion to the other resources
// (podsFor). Resources other than cpu are granted in whole units.
func Decide(ask Ask, p Policy, have Capacity) (Grant, error) {
	if p.Accept != Automatic && p.Accept != AfterApproval {
		return Grant{}, Refuse(ReasonPolicyRefused, "", "the provider's policy %q offers nothing to this peer", p.Name)
	}
	if err := checkAsk(ask); err != nil {
		return Grant{}, err
	}
	if err := checkFeatures(ask, p, have); err != nil {
		return Grant{}, err
	}
	g := Grant{
		StorageClasses: slices.Clone(ask.StorageClasses),
		Clauses: Clauses{
			Network: ask.Network, Pool: ask.Pool, NodeSelector: maps.Clone(ask.NodeSelector), RuntimeClasses: slices.Clone(ask.RuntimeClasses),
			PodSecurity: p.PodSecurity, NodeLabels: maps.Clone(p.NodeLabels), Price: p.Price.Clone(), Renewable: p.Renewable,
			Notice: min(max(p.Notice, 0), MaxNotice).Truncate(time.Second), StatementPeriod: statementPeriod(p.StatementPeriod),
			Exposure: p.exposure(ask),
		},
	}
	if len(g.Price.PerHour) == 0 {
		g.Price = PriceList{}
	}
	var err error
	if g.Duration, err = grantDuration(ask, p); err != nil {
		return Grant{}, err
	}
	if len(ask.Resources) == 0 {
		g.Resources, err = grantAll(p, have)
	} else {
		g.Resources, err = grantAsked(ask, p, have)
	}
	if err != nil {
		return Grant{}, err
	}
	g.LimitRange = p.LimitRange.within(g.Resources)
	if err := checkPrice(ask, g); err != nil {
		return Grant{}, err
	}
	if p.Accept == AfterApproval && !p.Approved {
		return Grant{}, Refuse(ReasonPolicyPending, "", "the provider's policy %q asks for approval: an administrator of the provider has to approve the request", p.Name)
	}
	return g, nil
}

// exposure returns which pods and services of the two clusters reach each other.
func (p Policy) exposure(ask Ask) string {
	if p.Exports && ask.Network {
		return ExposureExported
	}
	return ExposureOffloaded
}

// Refuse returns the error of a decision to grant nothing. The resource is the one that could not
// be granted, if one was the reason. The error for what may be granted later has a RetryAfter.
func Refuse(why Reason, resource, format string, args ...any) *Error {
	e := Errorf(why, format, args...)
	switch why { //nolint:exhaustive // the others do not pass by themselves
	case ReasonPolicyPending:
		e.RetryAfter = retryPending
	case ReasonCapacityExhausted:
		e.RetryAfter = retryCapacity
	}
	if resource != "" {
		e.Metadata = map[string]string{ResourceKey: resource}
	}
	return e
}

// checkFeatures checks what does not depend on free capacity.
func checkFeatures(ask Ask, p Policy, have Capacity) error {
	if ask.Network && !p.Network {
		return Refuse(ReasonPolicyRefused, "", "the provider's policy %q allows no tunnel", p.Name)
	}
	if err := p.CheckNodes(ask.NodeSelector); err != nil {
		return err
	}
	for _, kind := range []struct {
		name              string
		want, may, exists []string
	}{
		{"runtime class", ask.RuntimeClasses, p.RuntimeClasses, have.RuntimeClasses},
		{"storage class", ask.StorageClasses, p.StorageClasses, have.StorageClasses},
	} {
		for _, class := range kind.want {
			if !slices.Contains(kind.may, class) {
				return Refuse(ReasonPolicyRefused, "", "the provider's policy %q allows this peer no %s %s", p.Name, kind.name, class)
			}
			if !slices.Contains(kind.exists, class) {
				return Refuse(ReasonPolicyRefused, "", "the provider has no %s %s", kind.name, class)
			}
		}
	}
	return nil
}

// CheckNodes checks that a peer may choose nodes by these labels, or that they are those of its
// pool. The *Error names the label that is not allowed. It does not check whether such nodes
// exist.
func (p Policy) CheckNodes(selector map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		if own, ok := p.Nodes[key]; (!ok || own != selector[key]) && !slices.Contains(p.NodeSelectorKeys, key) {
			return Refuse(ReasonPolicyRefused, "", "the provider's policy %q lets this peer choose no nodes by the label %s", p.Name, key)
		}
	}
	return nil
}

func grantDuration(ask Ask, p Policy) (time.Duration, error) {
	d := p.Duration
	if ask.Duration > 0 && (d <= 0 || ask.Duration < d) {
		d = ask.Duration
	}
	if d = min(d, MaxContractLife).Truncate(time.Second); d < time.Second {
		return 0, Refuse(ReasonRequestInvalid, "", "neither the request nor the provider's policy sets a duration")
	}
	return d, nil
}

func statementPeriod(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return min(max(d, MinStatementPeriod), MaxStatementPeriod).Truncate(time.Second)
}

// checkPrice checks that a grant costs no more than was asked for.
func checkPrice(ask Ask, g Grant) error {
	if err := g.Price.Check(); err != nil {
		return Refuse(ReasonPolicyRefused, "", "the provider's policy has invalid prices: %v", err)
	}
	hourly, err := g.Price.Hourly(g.Resources)
	if err != nil {
		return Refuse(ReasonPolicyRefused, "", "%v", err)
	}
	switch ceiling := ask.PriceCeiling; {
	case ceiling.IsNone() || hourly.Amount.IsZero():
	case hourly.Currency != ceiling.Currency:
		return Refuse(ReasonPriceAboveCeiling, "", "it costs %s an hour, and the ceiling is %s: the currencies differ", hourly, ceiling)
	case hourly.Amount.Cmp(ceiling.Amount) > 0:
		return Refuse(ReasonPriceAboveCeiling, "", "it costs %s an hour, more than the ceiling of %s", hourly, ceiling)
	}
	return nil
}

func checkAsk(ask Ask) error {
	invalid := func(err error) error { return Refuse(ReasonRequestInvalid, "", "%v", err) }
	if err := checkRequestID(ask.RequestID); err != nil {
		return invalid(err)
	}
	if ask.ContractID != "" {
		if err := CheckContractID(ask.ContractID); err != nil {
			return invalid(err)
		}
	}
	most := MaxResources
	if _, named := ask.Resources[Pods]; !named {
		most-- // the grant has them
	}
	if len(ask.Resources) > most {
		return Refuse(ReasonRequestInvalid, "", "%d resources besides pods, more than %d", len(ask.Resources), MaxResources-1)
	}
	if ask.Duration < 0 {
		return Refuse(ReasonRequestInvalid, "", "duration is below zero")
	}
	for _, name := range ask.Resources.Names() {
		if err := checkResourceName(name); err != nil {
			return invalid(err)
		}
		if !Fractional(name) && !ask.Resources[name].IsWhole() {
			return Refuse(ReasonRequestInvalid, name, "%s %s is not a whole number", name, ask.Resources[name])
		}
	}
	if err := ask.PriceCeiling.Check(); err != nil {
		return Refuse(ReasonRequestInvalid, "", "price ceiling: %v", err)
	}
	for _, err := range []error{CheckPool(ask.Pool), CheckNodeSelector(ask.NodeSelector), CheckClasses(ask.RuntimeClasses), CheckClasses(ask.StorageClasses)} {
		if err != nil {
			return invalid(err)
		}
	}
	return nil
}

// Names of the limits that bound a grant.
const (
	BoundCeiling = "ceiling"
	BoundPercent = "percent of free"
	BoundTotal   = "total"
	BoundFree    = "free"
)

// bound is one of the limits on one resource.
type bound struct {
	by string
	// fixed means that it does not depend on what is free.
	fixed bool
	// limit is the most that may be granted, of which reserved is already taken.
	limit, reserved Quantity
}

func (b bound) left() Quantity { return b.limit.Sub(b.reserved) }

// bounds returns the limits on one resource: first the fixed ones, then those that depend on what
// is free.
//
// It is not known how much storage of a class is free, so only the policy's amounts bound it.
// Without an amount, and of a class that does not exist, nothing is offered.
func bounds(name string, p Policy, have Capacity) []bound {
	var list []bound
	if ceiling, ok := p.Ceilings[name]; ok {
		list = append(list, bound{BoundCeiling, true, ceiling, have.ReservedForPeer[name]})
	}
	if total, ok := p.Total[name]; ok {
		list = append(list, bound{BoundTotal, true, total, have.ReservedByPolicy[name]})
	}
	if class := StorageClass(name); class != "" {
		if free, known := have.Free[name]; known { // to keep what a contract has
			return append(list, bound{BoundFree, false, free, have.Reserved[name]})
		}
		if len(list) == 0 || !slices.Contains(have.StorageClasses, class) {
			return []bound{{BoundCeiling, true, Quantity{}, Quantity{}}}
		}
		return list
	}
	free := have.Free[name].percent(min(p.OvercommitPercent, MaxOvercommit))
	return append(list,
		bound{BoundPercent, false, free.Percent(p.PercentOfFree), have.ReservedForPeer[name]},
		bound{BoundTotal, false, free.Percent(p.TotalPercent), have.ReservedByPolicy[name]},
		bound{BoundFree, false, free, have.Reserved[name]},
	)
}

// headroom returns what may still be granted of one resource, and the bounds with that limit, in
// the order of bounds.
func headroom(name string, p Policy, have Capacity) (Quantity, []bound) {
	list := bounds(name, p, have)
	least := slices.MinFunc(list, func(a, b bound) int { return a.left().Cmp(b.left()) }).left()
	return wholeUnits(name, least), slices.DeleteFunc(list, func(b bound) bool { return b.left().Cmp(least) != 0 })
}

// wholeUnits is the part of an amount that can be granted: whole units of every resource but cpu.
func wholeUnits(name string, q Quantity) Quantity {
	if !Fractional(name) {
		return q.Floor()
	}
	return q
}

func grantAsked(ask Ask, p Policy, have Capacity) (Resources, error) {
	got := make(Resources, len(ask.Resources)+1)
	for _, name := range ask.Resources.Names() {
		want := ask.Resources[name]
		for _, b := range bounds(name, p, have) {
			if want.Cmp(b.left()) > 0 {
				return nil, b.refuse(name, want, p)
			}
		}
		got[name] = want
	}
	if _, named := got[Pods]; !named {
		pods := podsFor(ask, p, have)
		if pods.IsZero() {
			_, tightest := headroom(Pods, p, have)
			return nil, tightest[0].refuse(Pods, Whole(1), p)
		}
		got[Pods] = pods
	}
	return got, nil
}

// podsFor returns how many pods an ask gets that names only other resources: its share of the
// scarcest of those, applied to the pods that are not granted yet or to those within the bounds,
// whichever is less, and at least one. So peers that name no pods do not run out of pods before
// other resources. Zero means that no pod is left.
func podsFor(ask Ask, p Policy, have Capacity) Quantity {
	left, _ := headroom(Pods, p, have)
	unreserved := func(name string) Quantity {
		return have.Free[name].percent(min(p.OvercommitPercent, MaxOvercommit)).Sub(have.Reserved[name])
	}
	bounded := func(name string) Quantity {
		most, _ := headroom(name, p, have)
		return most
	}
	pods := min(podShare(ask.Resources, unreserved), podShare(ask.Resources, bounded))
	return Whole(max(pods, 1)).Min(left)
}

// podShare returns the largest share of any resource that is asked for, applied to the number of
// pods.
func podShare(asked Resources, of func(name string) Quantity) int64 {
	pods := of(Pods)
	most := int64(0)
	for name, want := range asked {
		there := of(name).bigMilli()
		if there.Sign() == 0 {
			continue
		}
		share := new(big.Int).Mul(pods.bigMilli(), want.bigMilli())
		share.Quo(share, there.Mul(there, big.NewInt(1000)))
		if !share.IsInt64() {
			return pods.Units()
		}
		most = max(most, share.Int64())
	}
	return min(most, pods.Units())
}

// refuse returns the error that a bound allows no more.
func (b bound) refuse(name string, want Quantity, p Policy) error {
	say := func(why Reason, format string, args ...any) error {
		return Refuse(why, name, "asked for %s, and "+format, append([]any{amount(name, want)}, args...)...)
	}
	left := wholeUnits(name, b.left())
	switch b.by {
	case BoundCeiling:
		return say(ReasonPolicyRefused, "the provider's policy %q allows this peer at most %s, of which it has %s", p.Name, amount(name, b.limit), amount(name, b.reserved))
	case BoundTotal:
		if b.fixed && want.Cmp(b.limit) > 0 {
			return say(ReasonPolicyRefused, "the provider's policy %q allows all peers together at most %s", p.Name, amount(name, b.limit))
		}
		return say(ReasonCapacityExhausted, "the provider's policy %q allows all peers together at most %s, of which %s is left now", p.Name, amount(name, b.limit), amount(name, left))
	case BoundPercent:
		return say(ReasonCapacityExhausted, "the provider's policy %q allows this peer %d%% of what is free, of which %s is left now", p.Name, p.PercentOfFree, amount(name, left))
	}
	return say(ReasonCapacityExhausted, "only %s is free", amount(name, left))
}

// amount is an amount with the name of its resource, for people: cpu 960m,
// memory 15Gi. It is rounded to a readable number of digits.
func amount(name string, q Quantity) string { return name + " " + shown(name, q).String() }

func shown(name string, q Quantity) Quantity { return round(name, wholeUnits(name, q)) }

// grantAll grants as much of every free resource as is allowed. It leaves out amounts of 0.
func grantAll(p Policy, have Capacity) (Resources, error) {
	got := Resources{}
	for _, name := range slices.Concat(have.Free.Names(), p.storage()) {
		if checkResourceName(name) != nil || name != Pods && len(got) >= MaxResources-1 {
			continue
		}
		if now, _ := headroom(name, p, have); !now.IsZero() {
			got[name] = round(name, now)
		}
	}
	// Without one of these no pod can run, so there is nothing to offer.
	for _, name := range []string{"cpu", "memory", Pods} {
		if _, offered := have.Free[name]; (offered || name == Pods) && got[name].IsZero() {
			return nil, Refuse(ReasonCapacityExhausted, name, "%s: nothing is left to offer under the provider's policy %q", name, p.Name)
		}
	}
	if len(got) == 0 {
		return nil, Refuse(ReasonCapacityExhausted, "", "nothing is left to offer under the provider's policy %q", p.Name)
	}
	return got, nil
}

// storage returns the storage that the policy offers, as resources, sorted.
func (p Policy) storage() []string {
	names := slices.Concat(p.Ceilings.Names(), p.Total.Names())
	names = slices.DeleteFunc(names, func(name string) bool { return StorageClass(name) == "" })
	slices.Sort(names)
	return slices.Compact(names)
}

// round rounds an amount of bytes down to whole mebibytes, for people. It does not change less
// than one.
func round(name string, q Quantity) Quantity {
	const mebi = 1 << 20
	if !InBytes(name) || q.Units() < mebi {
		return q
	}
	whole, err := ParseQuantity(strconv.FormatInt(q.Units()/mebi, 10) + "Mi")
	if err != nil {
		return q // cannot be: it is a number of mebibytes
	}
	return whole
}

// Bound is how much of one resource may be granted, and which limit bounds it.
type Bound struct {
	Resource string
	// Asked is what was asked for, or all that there is if nothing was named.
	Asked Quantity
	// Granted is how much of it may be granted.
	Granted Quantity
	// By is the limit that keeps Granted below Asked: BoundCeiling, BoundPercent, BoundTotal or
	// BoundFree. It is empty if Granted equals Asked. Of several, it is the first of ceiling,
	// total, percent of free and free.
	By string
	// Limit is the amount of that limit, of which some may be reserved already.
	Limit Quantity
	// Also has the others that allow no more than By, in that order.
	Also []Limit
	// all means that nothing was asked for by name.
	all bool
}

// Limit is one bound's amount.
type Limit struct {
	By     string
	Amount Quantity
}

// String returns it for people: cpu: 2 of 3, bounded by ceiling of 2 and total of 2.
func (b Bound) String() string {
	text := b.Resource + ": " + shown(b.Resource, b.Granted).String()
	if b.By == "" {
		return text
	}
	if !b.all {
		text += " of " + b.Asked.String()
	}
	text += fmt.Sprintf(", bounded by %s of %s", b.By, shown(b.Resource, b.Limit))
	for _, l := range b.Also {
		text += fmt.Sprintf(" and %s of %s", l.By, shown(b.Resource, l.Amount))
	}
	return text
}

// Explain returns what bounds each resource of an ask, by name. It is for the provider's own
// administrators.
func Explain(ask Ask, p Policy, have Capacity) []Bound {
	all := len(ask.Resources) == 0
	names := ask.Resources.Names()
	if all {
		names = slices.Concat(have.Free.Names(), p.storage())
	}
	if _, named := ask.Resources[Pods]; !all && !named {
		ask.Resources = ask.Resources.KeepUnnamed(Resources{Pods: podsFor(ask, p, have).max(Whole(1))})
		names = ask.Resources.Names()
	}
	var list []Bound
	for _, name := range names {
		left, tightest := headroom(name, p, have)
		b := Bound{Resource: name, Asked: ask.Resources[name], Granted: left, By: tightest[0].by, Limit: tightest[0].limit, all: all}
		for _, t := range tightest[1:] {
			if l := (Limit{t.by, t.limit}); t.by != b.By && !slices.Contains(b.Also, l) {
				b.Also = append(b.Also, l)
			}
		}
		if all {
			b.Asked, b.Granted = left, round(name, left)
		} else if b.Asked.Cmp(left) <= 0 {
			b = Bound{Resource: name, Asked: b.Asked, Granted: b.Asked}
		}
		list = append(list, b)
	}
	return list
}

// PolicyTest is what a peer would be granted, and why.
type PolicyTest struct {
	// Policy is the name of the PeeringPolicy that decides, if one selects the peer.
	Policy string
	// Advertisement is what would be offered, or nil.
	Advertisement *Advertisement
	// Reason is why nothing would be offered, as the peer would receive it.
	Reason Reason
	// Message is for the provider's own administrators: why nothing would be offered, and which
	// ceiling bounds which resource.
	Message string
}
