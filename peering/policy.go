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
	// RequestID names the request for ever.
	RequestID string
	// ContractID is the contract whose next revision is asked for; empty asks for a
	// new one.
	ContractID string
	// Resources is what it asks for; empty means as much as the policy gives.
	Resources Resources
	// Duration is for how long; zero leaves it to the policy.
	Duration time.Duration
	// Network says that it wants a tunnel.
	Network bool
	// PriceCeiling is the most that the whole may cost an hour; none is any price.
	PriceCeiling Money
	// Pool is the pool of the provider's nodes that it wants; empty if it names none.
	Pool string
	// NodeSelector are labels that the provider's nodes must have.
	NodeSelector map[string]string
	// StorageClasses are those that the provider must have, sorted.
	StorageClasses []string
	// RuntimeClasses are those that the provider must have and pods may then name,
	// sorted.
	RuntimeClasses []string
}

// Acceptance says whether a policy answers a request.
type Acceptance uint8

// The answers.
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
	// Name is what to call the policy in messages.
	Name string
	// Accept says whether anything is offered at all.
	Accept Acceptance
	// Approved says that an administrator approved this request.
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
	// Duration is how long a contract lasts at most.
	Duration time.Duration
	// Network says that a tunnel may be had, and Exports that Services may be imported
	// through it.
	Network     bool
	Exports     bool
	PodSecurity PodSecurity
	NodeLabels  map[string]string
	// Price is what use costs.
	Price PriceList
	// Renewable says that contracts are renewed.
	Renewable bool
	// Notice is how long pods may run on when this side ends a contract early.
	Notice time.Duration
	// StatementPeriod is how long each statement of use covers; zero makes none.
	StatementPeriod time.Duration
	// RuntimeClasses and StorageClasses are those that peers may have.
	RuntimeClasses []string
	StorageClasses []string
	// NodeSelectorKeys are the labels by which peers may choose nodes.
	NodeSelectorKeys []string
	// Nodes are labels of the nodes that the limits are about, those of a pool; none is all nodes.
	// OvercommitBeyond is OvercommitPercent for nodes of which these are some.
	Nodes            map[string]string
	OvercommitBeyond int
	// LimitRange is what containers of the peer's pods have that say nothing, and their bounds.
	LimitRange LimitRange
}

// Capacity is what a provider has.
type Capacity struct {
	// Free is what its nodes have unrequested, those that have the labels that are
	// asked for. What offloaded pods request counts as free here: it is in Reserved.
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
	// Duration is for how long.
	Duration time.Duration
	// StorageClasses are what was asked for. A contract says nothing of them.
	StorageClasses []string
}

// Decide decides what to grant: what was asked for, if every ceiling allows it,
// and else nothing, with an *Error. An ask that names no resources gets as
// much of each as the ceilings allow; if that costs more than its price ceiling,
// nothing. Every grant has a number of pods: an ask that names resources but no
// pods gets the share of the pods that it takes of the rest (podsFor). Resources
// other than cpu come in whole units.
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

// exposure is what pods of the two clusters reach of each other.
func (p Policy) exposure(ask Ask) string {
	if p.Exports && ask.Network {
		return ExposureExported
	}
	return ExposureOffloaded
}

// Refuse returns the error of a decision to grant nothing. The resource is the one that
// it failed for, empty if none in particular. What may be granted later says when to ask
// again.
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

// checkFeatures checks what is had or not, whatever is free.
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
				return Refuse(ReasonPolicyRefused, "", "the provider's policy %q gives this peer no %s %s", p.Name, kind.name, class)
			}
			if !slices.Contains(kind.exists, class) {
				return Refuse(ReasonPolicyRefused, "", "the provider has no %s %s", kind.name, class)
			}
		}
	}
	return nil
}

// CheckNodes checks that a peer may choose nodes by these labels, or that they are those of its
// pool: an *Error says by which not. It asks nothing about what nodes there are.
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
		return 0, Refuse(ReasonRequestInvalid, "", "neither the request nor the provider's policy says for how long")
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
		return Refuse(ReasonPolicyRefused, "", "the provider's policy has prices that make no sense: %v", err)
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

// What bounds a grant.
const (
	BoundCeiling = "ceiling"
	BoundPercent = "percent of free"
	BoundTotal   = "total"
	BoundFree    = "free"
)

// bound is one of the limits on one resource.
type bound struct {
	by string
	// fixed says that it does not depend on what is free.
	fixed bool
	// limit is the most that may be granted, of which reserved is taken already.
	limit, reserved Quantity
}

func (b bound) left() Quantity { return b.limit.Sub(b.reserved) }

// bounds returns what limits one resource: first what is fixed, then what
// depends on what is free.
//
// How much storage of a class is free nobody tells, so only the policy's amounts bound
// it: without any, and of a class that is not there, nothing is offered.
func bounds(name string, p Policy, have Capacity) []bound {
	var list []bound
	if ceiling, ok := p.Ceilings[name]; ok {
		list = append(list, bound{BoundCeiling, true, ceiling, have.ReservedForPeer[name]})
	}
	if total, ok := p.Total[name]; ok {
		list = append(list, bound{BoundTotal, true, total, have.ReservedByPolicy[name]})
	}
	if class := StorageClass(name); class != "" {
		if free, told := have.Free[name]; told { // to keep what a contract has
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

// headroom is what may still be granted of one resource, and the bounds that say
// so, in the order of bounds: several where they allow the same.
func headroom(name string, p Policy, have Capacity) (Quantity, []bound) {
	list := bounds(name, p, have)
	least := slices.MinFunc(list, func(a, b bound) int { return a.left().Cmp(b.left()) }).left()
	return wholeUnits(name, least), slices.DeleteFunc(list, func(b bound) bool { return b.left().Cmp(least) != 0 })
}

// wholeUnits is the part of an amount that can be granted: whole units of everything
// but cpu.
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

// podsFor returns how many pods an ask gets that names other resources only: the
// share that it takes of the scarcest of the others, of the pods that nobody has yet or
// of those within the bounds, whichever is less, and at least one. So peers that name no
// pods run out of them no sooner than of the rest. Zero means that no pod is left.
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

// podShare returns the largest share that a resource asked for is of what there is of
// it, as a number of the pods that there are.
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

// refuse says why a bound allows no more.
func (b bound) refuse(name string, want Quantity, p Policy) error {
	say := func(why Reason, format string, args ...any) error {
		return Refuse(why, name, "asked for %s, and "+format, append([]any{amount(name, want)}, args...)...)
	}
	left := wholeUnits(name, b.left())
	switch b.by {
	case BoundCeiling:
		return say(ReasonPolicyRefused, "the provider's policy %q gives this peer at most %s, of which it holds %s", p.Name, amount(name, b.limit), amount(name, b.reserved))
	case BoundTotal:
		if b.fixed && want.Cmp(b.limit) > 0 {
			return say(ReasonPolicyRefused, "the provider's policy %q gives all peers together at most %s", p.Name, amount(name, b.limit))
		}
		return say(ReasonCapacityExhausted, "the provider's policy %q gives all peers together at most %s, of which %s is left now", p.Name, amount(name, b.limit), amount(name, left))
	case BoundPercent:
		return say(ReasonCapacityExhausted, "the provider's policy %q gives this peer %d%% of what is free, of which %s is left now", p.Name, p.PercentOfFree, amount(name, left))
	}
	return say(ReasonCapacityExhausted, "only %s is free", amount(name, left))
}

// amount is an amount with the name of its resource, for people: cpu 960m,
// memory 15Gi. No more digits than anybody reads.
func amount(name string, q Quantity) string { return name + " " + shown(name, q).String() }

func shown(name string, q Quantity) Quantity { return round(name, wholeUnits(name, q)) }

// grantAll gives of every resource that is free as much as it may. What comes to
// nothing is left out.
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

// round rounds an amount of bytes down to whole mebibytes, since a person reads
// it. What is less than one stays as it is.
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

// Bound is how much of one resource may be granted, and what bounds it.
type Bound struct {
	Resource string
	// Asked is what was asked for; as much as there is if nothing was named.
	Asked Quantity
	// Granted is what there may be of it.
	Granted Quantity
	// By is what keeps Granted below Asked: BoundCeiling, BoundPercent, BoundTotal
	// or BoundFree. It is empty if nothing does. Where several do, it is the first of
	// ceiling, total, percent of free and free.
	By string
	// Limit is that bound's amount, of which some may be reserved already.
	Limit Quantity
	// Also is the others that allow no more than By does, in that order.
	Also []Limit
	// all says that nothing was asked for by name.
	all bool
}

// Limit is one bound's amount.
type Limit struct {
	By     string
	Amount Quantity
}

// String says it for people: cpu: 2 of 3, bounded by ceiling of 2 and total of 2.
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

// Explain says what bounds each resource of an ask, by name. It is for the
// provider's own administrators.
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

// PolicyTest is what a peer would be answered, and why.
type PolicyTest struct {
	// Policy is the name of the PeeringPolicy that decides; empty if none selects
	// the peer.
	Policy string
	// Advertisement is what would be offered; nil if nothing.
	Advertisement *Advertisement
	// Reason is why nothing, as the peer would be told.
	Reason Reason
	// Message is for the provider's own people: why nothing, and which ceiling
	// bounds which resource.
	Message string
}
