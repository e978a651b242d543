// Package plural writes counts in messages for people.
package plural

import "fmt"

// Of returns n with its noun: "1 attempt", "2 attempts". one is the singular of a noun whose plural ends in s.
func Of(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
