package peering

import (
	"fmt"
	"maps"
)

// LimitRange has the defaults of containers of offloaded pods that do not set a resource, and the
// bounds of containers and pods, as a LimitRange of Kubernetes has. Its resources are cpu, memory
// and ephemeral-storage. Default requests count against the contract and are paid for, so both
// sides sign them.
type LimitRange struct {
	// DefaultRequest is the request, and Default the limit, of a container that does not set them.
	DefaultRequest, Default Resources
	// Min and Max bound the request and the limit of each container, PodMin and PodMax the sums of
	// a pod's containers.
	Min, Max, PodMin, PodMax Resources
}

// limited reports whether a limit range may name a resource. All others are requested in whole
// devices, and their limit equals their request.
func limited(name string) bool {
	return name == "cpu" || name == "memory" || name == "ephemeral-storage"
}

// part is one list of a limit range.
type part struct {
	name    string
	amounts *Resources
}

// parts returns the lists in the order of their names.
func (l *LimitRange) parts() []part {
	return []part{
		{"default", &l.Default},
		{"defaultRequest", &l.DefaultRequest},
		{"max", &l.Max},
		{"min", &l.Min},
		{"podMax", &l.PodMax},
		{"podMin", &l.PodMin},
	}
}

// IsZero reports whether it has no amounts.
func (l LimitRange) IsZero() bool {
	for _, p := range l.parts() {
		if len(*p.amounts) > 0 {
			return false
		}
	}
	return true
}

// Equal reports whether two are the same.
func (l LimitRange) Equal(o LimitRange) bool {
	others := o.parts()
	for i, p := range l.parts() {
		if !maps.Equal(p.amounts.Strings(), others[i].amounts.Strings()) {
			return false
		}
	}
	return true
}

// Clone returns a copy, without lists that are empty.
func (l LimitRange) Clone() LimitRange {
	for _, p := range l.parts() {
		if len(*p.amounts) == 0 {
			*p.amounts = nil
			continue
		}
		*p.amounts = p.amounts.Clone()
	}
	return l
}

// Check returns what is wrong with it first, if anything.
func (l LimitRange) Check() error {
	if problems := l.Problems(); len(problems) > 0 {
		return fmt.Errorf("limit range: %s", problems[0])
	}
	return nil
}

// Problems returns everything that is wrong with it.
func (l LimitRange) Problems() (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, p := range l.parts() {
		for _, name := range p.amounts.Names() {
			if !limited(name) {
				say("%s: %s is neither cpu, memory nor ephemeral-storage", p.name, name)
			}
			if amount := (*p.amounts)[name]; !Fractional(name) && !amount.IsWhole() {
				say("%s: %s %s is not a whole number", p.name, name, amount)
			}
		}
	}
	for _, order := range [][2]part{
		{{"min", &l.Min}, {"max", &l.Max}},
		{{"min", &l.Min}, {"default", &l.Default}},
		{{"min", &l.Min}, {"defaultRequest", &l.DefaultRequest}},
		{{"defaultRequest", &l.DefaultRequest}, {"default", &l.Default}},
		{{"defaultRequest", &l.DefaultRequest}, {"max", &l.Max}},
		{{"default", &l.Default}, {"max", &l.Max}},
		{{"podMin", &l.PodMin}, {"podMax", &l.PodMax}},
	} {
		for _, name := range order[0].amounts.Names() {
			low := (*order[0].amounts)[name]
			if high, ok := (*order[1].amounts)[name]; ok && low.Cmp(high) > 0 {
				say("of %s %s is %s, more than %s, %s", name, order[0].name, low, order[1].name, high)
			}
		}
	}
	return out
}

// within returns the limit range for a contract that grants these resources. Defaults that follow
// from other amounts are filled in, as in a LimitRange of Kubernetes: the default limit is max,
// the default request the default limit or min. There is no default request of a resource that is
// not granted, since no pod would fit the contract.
func (l LimitRange) within(granted Resources) LimitRange {
	out := l.Clone()
	out.Default = unlessNamed(out.Default, out.Max)
	out.DefaultRequest = unlessNamed(unlessNamed(out.DefaultRequest, out.Default), out.Min)
	for _, name := range out.DefaultRequest.Names() {
		if _, ok := granted[name]; ok {
			continue
		}
		delete(out.DefaultRequest, name)
		if _, ok := out.Default[name]; ok { // else a container would request its limit
			out.DefaultRequest[name] = Quantity{}
		}
	}
	for _, low := range []Resources{out.Min, out.PodMin} {
		maps.DeleteFunc(low, func(name string, _ Quantity) bool {
			_, ok := granted[name]
			return !ok
		})
	}
	return out.Clone()
}

// unlessNamed returns amounts, and those of others for resources that amounts does not name.
func unlessNamed(amounts, others Resources) Resources {
	if len(others) == 0 {
		return amounts
	}
	return amounts.KeepUnnamed(others)
}

// jsonLimitRange is the JSON of a LimitRange. Empty lists are left out.
type jsonLimitRange struct {
	Default        map[string]string `json:"default,omitempty"`
	DefaultRequest map[string]string `json:"defaultRequest,omitempty"`
	Max            map[string]string `json:"max,omitempty"`
	Min            map[string]string `json:"min,omitempty"`
	PodMax         map[string]string `json:"podMax,omitempty"`
	PodMin         map[string]string `json:"podMin,omitempty"`
}

// limitRangeJSON returns nil for an empty limit range.
func limitRangeJSON(l LimitRange) *jsonLimitRange {
	if l.IsZero() {
		return nil
	}
	return &jsonLimitRange{
		Default: l.Default.Strings(), DefaultRequest: l.DefaultRequest.Strings(),
		Max: l.Max.Strings(), Min: l.Min.Strings(), PodMax: l.PodMax.Strings(), PodMin: l.PodMin.Strings(),
	}
}

func (j *jsonLimitRange) limitRange() (out LimitRange, err error) {
	if j == nil {
		return out, nil
	}
	from := []map[string]string{j.Default, j.DefaultRequest, j.Max, j.Min, j.PodMax, j.PodMin}
	for i, p := range out.parts() {
		if *p.amounts, err = ParseResources(from[i]); err != nil {
			return LimitRange{}, fmt.Errorf("limitRange.%s: %w", p.name, err)
		}
	}
	return out.Clone(), nil
}
