//! When the slow limits hold, by the clock. Pure.

use serde_json::{Map, Value, json};

use super::settings::Refused;

/// Minutes of a day.
const DAY: u16 = 24 * 60;
/// The days of a week, as they are written.
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// What a schedule has to be.
const MUST: &str = "null, or an object with `from` and `to`, such as \"08:00\", and `days`, a list of mon, tue, wed, thu, fri, sat and sun";

/// A moment of a week, as the clock on the wall shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalTime {
    /// The day, Monday being 0.
    pub day: u8,
    /// The minute of the day.
    pub minute: u16,
}

/// A part of some days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// The minute from which on it holds.
    pub from: u16,
    /// The minute at which it ends, on the next day where that is not after the first one.
    pub to: u16,
    /// On which days it begins.
    pub days: [bool; 7],
}

impl Schedule {
    /// Whether it holds.
    pub(crate) fn holds(&self, now: LocalTime) -> bool {
        let is_on = |day: u8| self.days.get(usize::from(day)).copied().unwrap_or(false);
        let (today, yesterday) = (is_on(now.day), is_on((now.day + 6) % 7));
        if self.from < self.to {
            return today && (self.from..self.to).contains(&now.minute);
        }
        today && now.minute >= self.from || yesterday && now.minute < self.to
    }

    pub(crate) fn to_json(&self) -> Value {
        let time = |minute: u16| format!("{:02}:{:02}", minute / 60, minute % 60);
        let days: Vec<&str> = DAYS.iter().zip(self.days).filter(|(_, is_on)| *is_on).map(|(name, _)| *name).collect();
        json!({ "from": time(self.from), "to": time(self.to), "days": days })
    }

    /// Reads one, or none.
    pub(crate) fn from_json(value: &Value) -> Result<Option<Self>, Refused> {
        match value {
            Value::Null => Ok(None),
            value => value.as_object().and_then(read).map(Some).ok_or(Refused { field: "slow_schedule", must: MUST }),
        }
    }
}

fn read(object: &Map<String, Value>) -> Option<Schedule> {
    let time = |name: &str| {
        let (hours, minutes) = object.get(name)?.as_str()?.split_once(':')?;
        let number = |text: &str| text.parse::<u16>().ok().filter(|_| text.len() == 2 && !text.starts_with('+'));
        let minute = number(hours)?.checked_mul(60)?.checked_add(number(minutes).filter(|minutes| *minutes < 60)?)?;
        (minute < DAY).then_some(minute)
    };
    let mut days = [false; 7];
    for day in object.get("days")?.as_array()? {
        let at = DAYS.iter().position(|name| day.as_str() == Some(name))?;
        days[at] = true;
    }
    (object.len() == 3).then_some(())?;
    Some(Schedule { from: time("from")?, to: time("to")?, days })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: u8, minute: u16) -> LocalTime {
        LocalTime { day, minute }
    }

    #[test]
    fn it_holds_from_minute_to_minute_also_over_midnight() {
        let mut days = [false; 7];
        days[4] = true;
        let day = Schedule { from: 480, to: 1350, days };
        assert!(day.holds(at(4, 480)) && day.holds(at(4, 1349)));
        assert!(!day.holds(at(4, 479)) && !day.holds(at(4, 1350)) && !day.holds(at(5, 480)));
        let night = Schedule { from: 1350, to: 480, days };
        assert!(night.holds(at(4, 1350)) && night.holds(at(5, 479)));
        assert!(!night.holds(at(4, 1349)) && !night.holds(at(5, 480)) && !night.holds(at(4, 0)));
        let always = Schedule { from: 0, to: 0, days: [true; 7] };
        assert!((0..7).all(|day| always.holds(at(day, 0)) && always.holds(at(day, DAY - 1))));
        days = [false; 7];
        days[6] = true;
        assert!(Schedule { from: 1350, to: 480, days }.holds(at(0, 3)), "from Sunday on to Monday");
        assert!(!Schedule { from: 0, to: 0, days: [false; 7] }.holds(at(0, 3)));
    }

    #[test]
    fn it_is_written_as_it_is_read_and_nonsense_is_refused() {
        let text = json!({ "from": "08:00", "to": "22:30", "days": ["mon", "sun"] });
        let schedule = Schedule::from_json(&text).unwrap().unwrap();
        assert_eq!((schedule.from, schedule.to, schedule.to_json()), (480, 1350, text));
        assert_eq!(Schedule::from_json(&Value::Null), Ok(None));
        for bad in [
            json!({}),
            json!("08:00"),
            json!({ "from": "8:00", "to": "22:30", "days": [] }),
            json!({ "from": "24:00", "to": "22:30", "days": [] }),
            json!({ "from": "08:60", "to": "22:30", "days": [] }),
            json!({ "from": "08:00", "to": "22:30", "days": ["Monday"] }),
            json!({ "from": "08:00", "to": "22:30", "days": [], "more": 1 }),
            json!({ "from": "+8:00", "to": "22:30", "days": [] }),
        ] {
            assert!(Schedule::from_json(&bad).is_err(), "{bad}");
        }
    }
}
