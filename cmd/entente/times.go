package main

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/duration"
)

// moment is a point in time, in UTC.
func moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Format(time.RFC3339)
}

// since is how long ago something was, as kubectl writes it.
func (a *app) since(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return duration.HumanDuration(a.now().Sub(t.AsTime()))
}

// until is how long something takes yet.
func (a *app) until(t *timestamppb.Timestamp) string {
	switch {
	case t == nil:
		return "-"
	case !t.AsTime().After(a.now()):
		return "over"
	}
	return duration.HumanDuration(t.AsTime().Sub(a.now()))
}

// span is a duration; none says what an unset one is.
func span(d *durationpb.Duration, none string) string {
	if d == nil {
		return none
	}
	return spanOf(d.AsDuration())
}

// spanOf is a duration without the units that are zero: 24h, not 24h0m0s.
func spanOf(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
